"""Kernels: numerical and symbolic kernels, exact and beside their peers."""
