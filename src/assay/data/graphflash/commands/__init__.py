"""The verbs that this paper brings to `assay data`."""
