"""The verbs that fold brings."""
