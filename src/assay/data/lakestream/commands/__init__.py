"""What `assay data` does with a plane."""
