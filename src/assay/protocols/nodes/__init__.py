"""A library of nodes to run, to build on and to break."""
