"""The simulator of LLM serving and what it consists of."""
