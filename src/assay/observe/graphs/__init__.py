"""Execution graphs: recorded, linked, generated, and replayed on another network."""
