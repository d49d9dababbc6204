"""Federated: learning across devices that keep their data."""
