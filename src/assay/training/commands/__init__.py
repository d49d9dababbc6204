"""The room's verbs."""
