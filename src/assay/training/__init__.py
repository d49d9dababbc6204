"""Training: planners, parallelism, collectives and fault tolerance."""
