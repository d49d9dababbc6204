"""Commands that the paper brings."""
