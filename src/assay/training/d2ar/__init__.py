"""D2AR: a decoder that has learnt the archive of a place needs only a few bytes to rebuild today's picture of it.

Satellites see the same fields every week. Fields, forests and roads stay; what is new is weather, season and a few
changes. So the ground station keeps the archive and a generative model of it, and the satellite sends control tokens:
an autoencoder makes latents, a light encoder says in a few quantised numbers how they differ from what the season would
have, a transformer follows the flow from noise to the observation's latents, given tokens, place, day and history.

What to watch: the season's picture alone costs nothing and is a strong rival, and plain wavelets of the difference
from it share the archive's advantage; both run beside it at equal bytes, counted on disk. What no byte told is made up
from the archive: the study builds new halls into scenes nobody learnt from, and counts those that decoding loses. On a
place without an archive nothing is left of the advantage. The machine's side is a model of the room's engine.

Tsinghua, SYSU, NUS and Shenzhen, arXiv:2605.08633; only a digest was at hand: sizes, what the encoder sees and how the
flow is parameterised are ours (options of `Options`).

>>> _, archive, _ = archived(64, seed=1, a_year=4)
>>> model = train(archive, steps=2)
>>> file = encode(model, archive.images[0], int(archive.days[0]), budget=49)  # raw: 49,152 bytes
>>> len(file) <= 49, decode(model, file).shape
(True, (6, 64, 64))
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.record import intervals
from assay.record.measures import Measure, best, mean, ratio, rows
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.training.d2ar import scaling, trial
from assay.training.d2ar.archive import Archive as Archive
from assay.training.d2ar.model import Options as Options
from assay.training.d2ar.model import decode as decode
from assay.training.d2ar.model import encode as encode
from assay.training.d2ar.model import train as train
from assay.training.d2ar.trial import archived as archived

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL
needs = ("torch",)
use_when = "The same places are seen over and over, the downlink is the bottleneck, and tasks live with what is likely."
avoid_when = (
    "Places without an archive, or pictures that must be evidence: what no byte told is made up. And try wavelets of "
    "the difference from the season first: they need no training."
)
trust = (
    "A synthetic planet, six bands, a model of some hundred thousand weights trained for seconds (the GPU's rows: five "
    "million, a minute). Rates of the 20,480 nodes come from an engine that was fitted to nothing of that machine, "
    "and are 1.6 times the published ones in the mean of five draws."
)
own_input = "assay compare d2ar --tiles examples/tiles.npz --ratio 1000"
references = (
    "EQ-VAE: Kouzelis et al., 2025. Flow matching: Lipman et al., ICLR 2023.",
    "CDF 9/7 and context coding: Taubman, Marcellin, JPEG 2000, 2002.",
)
STORED = Path(__file__).with_name("h200.json")


def stored(seed: int) -> dict[str, dict[str, Any]]:
    """What the GPU's run of this seed gave; empty where none is stored."""
    if not STORED.exists():
        return {}
    found = json.loads(STORED.read_text(encoding="utf-8"))["rows"]
    return {row["method"]: {k: v for k, v in row.items() if k not in ("part", "method", "seed")} for row in found
            if row["part"] == "method" and row["seed"] == seed}  # fmt: skip


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Held-out days and places; weak scaling of the machine; and rows that a GPU's longer training gave."""
    case = {
        "size": lab.pick(quick=128, full=256), "dates": lab.pick(quick=2, full=4), "a_year": lab.pick(quick=6, full=12),
        "steps": lab.pick(quick=16, full=300), "batch": lab.pick(quick=16, full=32),
    }  # fmt: skip
    found = {
        "held out": lab.with_seeds(quick=3, full=3).run(trial.held_out, [case], per="method"),
        "scaling": lab.run(scaling.weak, [{"nodes": nodes} for nodes in scaling.NODES]),
    }
    if STORED.exists():
        on_gpu = sorted({row["seed"] for row in json.loads(STORED.read_text())["rows"] if row["part"] == "method"})
        rows_ = [{"method": name, "seed": seed} | row for seed in on_gpu for name, row in stored(seed).items()]
        lab.cases.add("method")
        found["h200"] = pl.DataFrame(rows_, infer_schema_length=None)
    return found


def _less(column: str, one: str, other: str, experiment: str = "held out") -> Measure:
    """The difference of two methods, paired by seed."""

    def measure(table: pl.DataFrame) -> Estimate:
        if experiment not in table["experiment"].unique().to_list():
            raise NotMeasured("measured on a GPU only, and no rows of one are stored")
        a, b = (rows(table, {"experiment": experiment, "method": name})[column].to_list() for name in (one, other))
        return intervals.bootstrap([x - y for x, y in zip(a, b, strict=True)])

    return measure


def _usable(ratio_: int) -> Measure:
    """How many times fewer bytes the files have, where land cover is still told as well as USABLE says; else 1."""

    def measure(table: pl.DataFrame) -> Estimate:
        found = rows(table, {"experiment": "held out", "method": f"d2ar at {ratio_}"})
        return intervals.bootstrap([r if u else 1.0 for r, u in zip(found["ratio"], found["usable"], strict=True)])

    return measure


def _own(id: str, asks: str, measure: Measure, kind: Kind = Kind.DIFFERENCE, **more: Any) -> Claim:
    return Claim(id, measure, asks=asks, kind=kind, **more)


_UP: dict[str, Any] = {"toward": "up", "unit": "dB"}
_SHARE: dict[str, Any] = {"toward": "up", "unit": "share"}
_NODE = "a node's rate is the paper's own 'about one A100' times a share that is drawn here; only losses are predicted"
_AT, _LAST = "d2ar at 1000", scaling.NODES[-1]
claims = [
    Claim("best", best({f"{r:,}x": _usable(r) for r in trial.RATIOS})),
    Claim("least", best({"100x": _usable(100)}, min)),
    Claim("sustained", mean("flops", experiment="scaling", nodes=_LAST), evidence=Evidence.MODEL, construction=_NODE),
    Claim("peak", mean("peak", experiment="scaling", nodes=_LAST), evidence=Evidence.MODEL, construction=_NODE),
    _own("weak", "With the same samples a node, 20,480 nodes keep at least 0.9 of the rate that a node has among 256.",
         mean("efficiency", experiment="scaling", nodes=_LAST), Kind.AT_LEAST, value=0.9, unit="share",
         evidence=Evidence.MODEL),
    _own("codec", "At 1,000x the PSNR on held-out dates is above that of a wavelet codec at equal bytes.",
         _less("psnr", _AT, "wavelet at 1000"), **_UP),
    _own("codec-ssim", "At 1,000x the SSIM on held-out dates is above that of a wavelet codec at equal bytes.",
         _less("ssim", _AT, "wavelet at 1000"), toward="up", unit="SSIM"),
    _own("codec-cover", "At 1,000x land cover is told better than from a wavelet codec's pictures at equal bytes.",
         _less("accuracy", _AT, "wavelet at 1000"), **_SHARE),
    _own("learned", "At 1,000x the PSNR is above that of a learned codec with a factorised entropy model.",
         _less("psnr", _AT, "learned at 1000"), **_UP),
    _own("no-prior", "At 1,000x the PSNR is above that of the same codec trained without the archive.",
         _less("psnr", _AT, "no prior at 1000"), **_UP),
    _own("no-prior-cover", "At 1,000x land cover is told better than by the same codec trained without the archive.",
         _less("accuracy", _AT, "no prior at 1000"), **_SHARE),
    _own("no-place", "At 1,000x the PSNR is above that of the same codec trained without place and day.",
         _less("psnr", _AT, "no place at 1000"), **_UP),
    _own("season", "At 1,000x the PSNR is above that of the season's usual picture, which costs no bytes.",
         _less("psnr", _AT, "season at 1000"), **_UP),
    _own("season-cover", "At 1,000x land cover is told better than from the season's usual picture.",
         _less("accuracy", _AT, "season at 1000"), **_SHARE),
    _own("residual", "At 1,000x the PSNR is above that of wavelets of the difference from the season.",
         _less("psnr", _AT, "residual at 1000"), **_UP),
    _own("trained", "At 1,000x the trained decoder's PSNR is above that of the principal axes it started from.",
         _less("psnr", _AT, "not trained at 1000"), **_UP),
    _own("unseen", "On a place never seen, without an archive, the PSNR is at most 0 dB above a wavelet codec's.",
         _less("psnr", "unseen at 1000", "unseen wavelet at 1000"), Kind.AT_MOST, value=0.0, unit="dB"),
    _own("missed", "At 1,000x at most 0.2 of new halls of 8 x 8 pixels are lost, with 5 % of false alarms.",
         mean("missed", experiment="held out", method=_AT), Kind.AT_MOST, value=0.2, unit="share"),
    _own("missed-most", "At 10,000x at most 0.2 of new halls of 8 x 8 pixels are lost, with 5 % of false alarms.",
         mean("missed", experiment="held out", method="d2ar at 10000"), Kind.AT_MOST, value=0.2, unit="share"),
    _own("equivariance", "Decoding turned latents errs less where the autoencoder was trained to commute with turns.",
         ratio("unequal", of={"method": "equal"}, to={"method": "not equal"}, experiment="held out"), Kind.RATIO,
         toward="down"),
    _own("gpu-residual", "Trained longer on a GPU, the PSNR at 1,000x is above that of wavelets of the difference.",
         _less("psnr", _AT, "residual at 1000", "h200"), **_UP),
    _own("gpu-trained", "Trained longer on a GPU, the decoder's PSNR at 1,000x is above that of its starting axes.",
         _less("psnr", _AT, "not trained at 1000", "h200"), **_UP),
    _own("gpu-season-cover", "Trained longer on a GPU, land cover at 1,000x is told better than from the season.",
         _less("accuracy", _AT, "season at 1000", "h200"), **_SHARE),
]  # fmt: skip


DRAWN = ("d2ar", "residual", "learned", "wavelet", "no prior", "season", "last")


def plot(table: pl.DataFrame) -> alt.Chart:
    """Decibels over the ratio, by method."""
    import altair as alt

    found = table.filter(pl.col("experiment") == "held out", pl.col("psnr").is_not_null())
    found = found.with_columns(
        pl.col("method").str.extract(r"^(.*) at \d+$").alias("codec"),
        pl.col("method").str.extract(r" at (\d+)$").cast(pl.Float64).alias("asked"),
    ).filter(pl.col("codec").is_in(DRAWN))
    means = found.group_by("codec", "asked", maintain_order=True).agg(pl.col("psnr").mean())
    chart: alt.Chart = (
        alt.Chart(means)
        .mark_line(point=True)
        .encode(
            alt.X("asked:Q", title="raw bytes over bytes on disk").scale(type="log"),
            alt.Y("psnr:Q", title="PSNR on held-out days (dB)").scale(zero=False),
            alt.Color("codec:N", title=None, sort=list(DRAWN)),
        )
        .properties(width=420, height=280)
    )
    return chart
