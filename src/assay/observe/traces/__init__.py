"""Profiler traces: where the time went, who came last, what would change it; metrics computed from stored traces."""
