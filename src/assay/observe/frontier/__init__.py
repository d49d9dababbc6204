"""The frontier of a group of ranks: what each records, and which stage and rank made the group late."""
