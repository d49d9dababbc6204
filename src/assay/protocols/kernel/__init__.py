"""The kernel: one world, three ways to run it."""
