"""The verbs of `assay data` that belong to the whole room; a module here is a verb."""
