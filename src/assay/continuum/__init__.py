"""Continuum: placing and provisioning work over cloud, edge and space."""
