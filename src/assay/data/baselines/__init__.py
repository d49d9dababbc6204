"""Components without a paper: what the others are compared with, and what shows how one is written."""
