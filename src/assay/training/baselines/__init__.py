"""What several papers of the room compare with."""
