"""Traces, graphs and other inputs in the formats they are published in, and generators of the same."""
