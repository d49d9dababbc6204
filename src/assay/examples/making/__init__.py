"""What makes the generated files of `examples/`, a module a room; `python examples/make.py` writes them all."""
