"""What sizes by head keep on language models of natural text, text by text, as measured on an H200.

`benchmarks/h200_ab_quality.py` trains the models on the sources and documentation of a machine's Python, reads contexts
of assay's own sources, and goes on behind them through sparse attention in every layer; `text_models.json` beside this
file keeps what it wrote. Both models are young (157 million tokens, two or three minutes of learning, in windows of
512, 2,048 and 8,192 tokens): they find half of the passages that come again, and neither finds a needle's value, even
where it reads everything.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from assay.record import measures
from assay.record.intervals import bootstrap, ratio
from assay.record.types import Estimate

FILE = Path(__file__).with_name("text_models.json")
LARGE, SMALL, SHORT = "22 M, 8096 tokens", "1.4 M, 8096 tokens", "1.4 M, 4000 tokens"


@cache
def rows() -> dict[tuple[str, str], dict[str, Any]]:
    """What was measured, by model and method; columns are lists, a number a text.

    >>> len(rows()[LARGE, "ab-sparse"]["recall"])
    32
    """
    found = msgspec.json.decode(FILE.read_bytes())["rows"]
    return {(row["model"], row["method"]): row for row in found if row["part"] == "method"}


def column(model: str, method: str, name: str) -> Any:
    """One number a text. "accuracy" is the mean of text foreseen and passages found; needles are found by nobody."""
    row = rows()[model, method]
    if name == "accuracy":
        return (np.array(row["text"]) + np.array(row["passage"])) / 2
    return np.array(row[name], float)


def over(name: str, method: str, rival: str, model: str = LARGE) -> measures.Measure:
    """A method less a rival, text by text."""

    def measure(table: pl.DataFrame) -> Estimate:
        return bootstrap(column(model, method, name) - column(model, rival, name))

    return measure


def mean(name: str, method: str, model: str = LARGE) -> measures.Measure:
    """A method's mean over texts."""
    return lambda table: bootstrap(column(model, method, name))


def times(name: str, method: str, rival: str, model: str = LARGE) -> measures.Measure:
    """A method's mean over a rival's."""
    return lambda table: ratio(column(model, method, name), column(model, rival, name))
