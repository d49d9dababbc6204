"""Commands of this paper."""
