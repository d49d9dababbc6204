"""Observe: which rank, which cause, how much energy."""
