"""Consistency as two choices: which past must be visible, and how forks are ordered."""
