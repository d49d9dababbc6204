"""PartRePer."""
