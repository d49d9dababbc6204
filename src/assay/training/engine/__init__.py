"""The step engine: what a rank does in which order, what each of it takes, and when the step is over."""
