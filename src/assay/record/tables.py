"""A study's tables: one, or several by name.

A study of one experiment returns a table; one of several returns a dict of them. Claims and plots read all of them as
one, in which the column `experiment` holds a table's name.

>>> both = joined({"cost": pl.DataFrame({"n": [4], "seed": [0], "bits": [9]}), "safety": pl.DataFrame({"seed": [0]})})
>>> both["experiment"].to_list()
['cost', 'safety']
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from assay.record.fold import EXPERIMENT

Tables = pl.DataFrame | Mapping[str, pl.DataFrame]
"""What a study returns."""


def joined(tables: Tables) -> pl.DataFrame:
    """All tables as one. A table of several experiments that already has the column keeps it."""
    if isinstance(tables, pl.DataFrame):
        return tables
    parts = [
        table if EXPERIMENT in table.columns else table.select(pl.lit(name).alias(EXPERIMENT), pl.all())
        for name, table in tables.items()
        if table.width  # one without rows still says its columns
    ]
    return pl.concat(parts, how="diagonal_relaxed") if parts else pl.DataFrame()
