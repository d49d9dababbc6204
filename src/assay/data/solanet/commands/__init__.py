"""Commands of the paper."""
