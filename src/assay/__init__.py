"""assay: run the distributed-computing literature on your own workload, and use what wins."""

__version__ = "0.1.0"
