"""A critical path in sums: by kind, by rank, and what took longest."""

from __future__ import annotations

from typing import Any

import polars as pl


def summed(pieces: pl.DataFrame, named: pl.DataFrame, total: float) -> dict[str, Any]:
    """A path's pieces (`kind`, `rank`, `seconds`) added up; `named` are the sums of `kind` and `name`.

    Of `longest` the first five are the longest of all; behind them stands the longest of each kind that is not there.
    """
    kinds, ranks = (
        dict(
            pieces.group_by(column)
            .agg(pl.col("seconds").sum())
            .sort("seconds", column, descending=[True, False])
            .iter_rows()
        )
        for column in ("kind", "rank")
    )
    ordered = named.sort("seconds", "name", descending=[True, False])
    chosen = pl.concat([ordered.head(5), ordered.unique("kind", keep="first", maintain_order=True)])
    longest = chosen.unique(["kind", "name"], keep="first", maintain_order=True)
    return {"total": total, "kinds": kinds, "ranks": ranks, "longest": longest.to_dicts(), "pieces": len(pieces)}
