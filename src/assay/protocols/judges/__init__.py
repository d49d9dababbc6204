"""Judges of histories: which consistency model they satisfy, and the few operations that show which they do not."""
