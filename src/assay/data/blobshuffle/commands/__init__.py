"""The paper's verbs."""
