"""Where objects live, and what can be put around a store: meters, delays, faults, caches, zones."""
