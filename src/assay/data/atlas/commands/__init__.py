"""The verbs of `assay data` that atlas brings; a module here is a verb."""
