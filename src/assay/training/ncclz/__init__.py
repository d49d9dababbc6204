"""NCCLZ: quantise gradients or fields once, sum whole numbers round the ring, and code them anew on every hop.

A compressor at every hop of an all-reduce decodes to floats, adds and loses a little again. Codes of a common grid can
be added as they are: the sum of n ranks is off by at most n eps in whatever order it is formed, and all ranks hold the
same bits. What is left for the hops is lossless, so each frame may take whichever coder gets it through soonest: none,
blocks packed to their width, or Huffman's code, as a look at a few of its symbols says. Where a link carries floats
sooner than they are coded, they travel as they are.

The rings are real processes. Their links are shaped, and seconds are processor time plus modelled wire, which other
work on the machine does not change; the wall's clock is beside it. NCCL and GPUs are not at hand: what stands in for
NCCL is the plain ring on the same links.

arXiv:2605.12396.

>>> import numpy as np
>>> x = np.sin(np.arange(100_000, dtype=np.float32) / 500)
>>> packed = compress(x, eps=1e-3)
>>> x.nbytes > 20 * len(packed), bool(abs(decompress(packed) - x).max() <= 1e-3)
(True, True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.record import intervals
from assay.record.measures import Measure, best, change, counted, not_here, ratio, rows
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.ranks import prepare
from assay.training.ncclz import rivals
from assay.training.ncclz.arbiter import Arbiter as Arbiter
from assay.training.ncclz.arbiter import Speeds as Speeds
from assay.training.ncclz.coders import decode as decode
from assay.training.ncclz.coders import encode as encode
from assay.training.ncclz.collectives import Choices as Choices
from assay.training.ncclz.collectives import all_reduce as all_reduce
from assay.training.ncclz.collectives import all_reduce_levels as all_reduce_levels
from assay.training.ncclz.ddp import Compression as Compression
from assay.training.ncclz.ddp import hook as hook
from assay.training.ncclz.floats import compress as compress
from assay.training.ncclz.floats import decompress as decompress
from assay.training.ncclz.links import Link as Link
from assay.training.ncclz.links import Port as Port
from assay.training.ncclz.links import link as link

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL
needs = ("torch",)
use_when = "Links of a few Gb/s carry fields or gradients that bear a known error."
avoid_when = "Links are quicker than the coders (some GB/s on one core), messages are small, or the sum must be exact."
trust = (
    "Seconds are processor time of compiled code on one core and the wire of a shaped link; a GPU codes far quicker, "
    "and its links are quicker, too. Handing messages over is in the wall's clock only."
)
own_input = "assay compare ncclz --input examples/field.npy --links 1gbit --eps 1e-4"
references = (
    "QSGD: Alistarh et al., NeurIPS 2017. Lorenzo's predictor on quantised values: cuSZ, PACT 2020.",
    "gZCCL: ICS 2024; hZCCL: SC 2024; COCCL: quantised NCCL collectives.",
)

METHODS = tuple(rivals.METHODS)
FIELDS = (("smooth", 1e-3), ("smooth", 1e-4), ("sparse", 1e-3), ("rough", 1e-3), ("noise", 1e-3))
SMALL = 2**14  # numbers of a message of 64 KiB
BITS = 8  # of QSGD's levels
ONLY_ASKED = ("seeds", "race")  # columns that say what was asked of a run
HOOKS = ("fp32", "ncclz qsgd8")
WIDTH = 256  # of the language model whose gradients are summed: 4 MB


def by_link(ranks: int, count: int, seeds: Sequence[int], seed: int) -> dict[str, dict[str, Any]]:
    """Fields over shaped links by every method, a row a race, a method and a seed; one start of ranks serves all."""
    from assay.training.ncclz.race_job import Race, raced

    slow = link("1gbit", shaped=True)
    races = []
    for one in seeds:
        race = partial(Race, count=count, seed=one)
        if ranks > 2:
            races.append(race("smooth", 1e-3, slow, METHODS))
            continue
        for kind, eps in FIELDS:  # the smooth ones first: a field is drawn once for races that follow one another
            races.append(race(kind, eps, slow, METHODS))
        races.append(Race("smooth", 1e-3, slow, ("plain", "ncclz"), count=SMALL, seed=one))
    found = raced(races, ranks)
    return {
        f"{k} {name}": {
            "seed": race.seed, "kind": race.kind, "eps": race.eps, "bytes": 4 * race.count, "method": name,
            "size": "small" if race.count == SMALL else "large",
        } | row
        for k, (race, part) in enumerate(zip(races, found, strict=True))
        for name, row in part.items()
    }  # fmt: skip


def by_hook(ranks: int, steps: int, seeds: Sequence[int], seed: int) -> dict[str, dict[str, Any]]:
    """Losses of a small language model trained with no hook and with NCCLZ's."""
    from assay.training.ncclz.ddp_job import trained

    return _flat(seeds, trained(ranks, steps, seeds, HOOKS), "hook")


def by_gradient(ranks: int, width: int, bits: int, seeds: Sequence[int], seed: int) -> dict[str, dict[str, Any]]:
    """Gradients of a language model summed over shaped links."""
    from assay.training.ncclz.race_job import gradients

    return _flat(seeds, gradients(ranks, width, bits, link("1gbit", shaped=True), seeds), "method")


def _flat(seeds: Sequence[int], found: Sequence[Mapping[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    return {
        f"{one} {key}": {"seed": one, name: key, **row}
        for one, part in zip(seeds, found, strict=True)
        for key, row in part.items()
    }


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Fields on shaped links, gradients, and training with hooks."""
    from assay.training.ncclz.race_job import IMPORTS

    prepare(IMPORTS)
    here = replace(lab, workers=0)  # workers may not start ranks
    once = here.with_seeds(quick=1, full=1)
    few = list(here.with_seeds(quick=3, full=10).seeds)
    count = lab.pick(quick=1 << 20, full=1 << 23)
    many = [{"ranks": ranks, "count": count, "seeds": few} for ranks in (2, 4)]
    trains = [{"ranks": 2, "steps": lab.pick(quick=40, full=400), "seeds": list(lab.seeds)}]
    sums = [{"ranks": 2, "width": lab.pick(quick=WIDTH, full=2 * WIDTH), "bits": BITS, "seeds": few}]
    lab.used.update(lab.seeds)
    tables = {
        "links": once.run(by_link, many, per="race"),
        "gradients": once.run(by_gradient, sums, per="race"),
        "hooks": once.run(by_hook, trains, per="race"),
    }
    lab.cases.update(("kind", "eps", "size", "method", "hook", "bytes"))
    lab.cases.difference_update(ONLY_ASKED)  # rows say themselves whose seed's they are
    return {name: table.drop(ONLY_ASKED, strict=False) for name, table in tables.items()}


# --------------------------------------------------------------------------------------------------------- claims


def _sped(of: str, kind: str, eps: float, ranks: int) -> Measure:
    """How many times as long `of` takes as NCCLZ does."""
    case = {"experiment": "links", "size": "large", "kind": kind, "eps": eps, "ranks": ranks}
    return ratio("seconds", of={"method": of}, to={"method": "ncclz"}, **case)


CASES = {f"{kind} {eps:g}": (kind, eps, 2) for kind, eps in FIELDS} | {"smooth 0.001, 4 ranks": ("smooth", 1e-3, 4)}


def _quickest(table: pl.DataFrame) -> Estimate:
    """In the case where it is least: how many times as long as NCCLZ the quickest earlier way takes."""
    cases = {name: best({of: _sped(of, *case) for of in rivals.EARLIER}, min) for name, case in CASES.items()}
    return best(cases, min)(table)


def _within(table: pl.DataFrame) -> Estimate:
    found = rows(table, {"experiment": "links"}).filter(pl.col("method").str.starts_with("ncclz"))
    held = [bool(error <= bound and same) for error, bound, same in found.select("error", "bound", "same").iter_rows()]
    return counted(sum(held) / len(held), len(held))


def _spread(table: pl.DataFrame) -> Estimate:
    """How far the loss is from fp32's, in standard deviations of fp32's between seeds."""
    own, coded = (rows(table, {"experiment": "hooks", "hook": name})["loss"].to_numpy() for name in HOOKS)
    if len(own) < 2:
        raise NotMeasured("noise takes at least two seeds to see: --seeds 5")
    found = intervals.bootstrap(((coded - own) / own.std(ddof=1)).tolist())
    return replace(found, value=abs(found.value), low=0.0, high=max(abs(found.low), abs(found.high)))


_small = {"experiment": "links", "size": "small", "ranks": 2}
claims = [
    Claim("over-nccl", best({name: _sped("plain", *case) for name, case in CASES.items()})),
    Claim("over-compressing", best({
        f"{of}, {name}": _sped(of, *case) for name, case in CASES.items() for of in rivals.EARLIER
    })),
    Claim("qmcpack", not_here(
        "needs SDRBench's QMCPack orbitals: download them and ask assay compare ncclz --input FILE.f32"
    )),
    Claim("qsgd", ratio("seconds", of={"method": "plain"}, to={"method": "qsgd"}, experiment="gradients")),
    Claim(
        "small", change("seconds", new={"method": "ncclz"}, old={"method": "plain"}, **_small),
        construction="Messages of up to 64 KiB are passed to the plain ring, behind one that tells their size.",
    ),
    Claim(
        "bound", _within, kind=Kind.EVERY, evidence=Evidence.REAL,
        asks="Sums are within n eps of the exact ones, alike on all ranks.",
    ),
    Claim(
        "earlier", _quickest, kind=Kind.RATIO, toward="up",
        asks="NCCLZ is quicker than the quickest of the earlier ways, given the same compiled coders, on every field.",
    ),
    Claim(
        "loss", _spread, kind=Kind.AT_MOST, value=1.0, unit="spreads", evidence=Evidence.REAL,
        asks="Trained with QSGD's levels of 8 bits, a small language model's loss is within one standard deviation of "
        "fp32's between seeds.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Seconds of an all-reduce at 1 Gb/s by field and method."""
    import altair as alt

    found = table.filter(
        pl.col("experiment") == "links", pl.col("ranks") == 2, pl.col("size") == "large",
        pl.col("method").is_in(METHODS),
    ).with_columns(field=pl.format("{}, eps {}", "kind", "eps"))  # fmt: skip
    chart: alt.Chart = (
        alt.Chart(found.group_by("field", "method", maintain_order=True).agg(pl.col("seconds").mean()))
        .mark_bar()
        .encode(
            x=alt.X("method:N", title=None, sort=list(METHODS)),
            y=alt.Y("seconds:Q", title="seconds: processor and wire"),
            color=alt.Color("method:N", legend=None, sort=list(METHODS)),
            column=alt.Column("field:N", title=None),
        )
        .properties(width=110, height=220, title="Summing 4 MiB a rank over two ranks at 1 Gb/s")
    )
    return chart
