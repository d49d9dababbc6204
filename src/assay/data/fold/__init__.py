"""FOLD: look each new document up in a graph of everything kept so far, by a bitmap that still tells far from farther.

Near-duplicates are usually found by putting MinHash sketches into buckets, and the buckets of a corpus that keeps
growing are rebuilt or rescanned with every crawl. FOLD keeps a navigable graph instead: a batch is deduplicated within
itself, its survivors are looked up in the graph, and those that are near nothing are kept and linked. Over MinHash
slots such a graph does not work, for two unrelated documents agree in none of them and every step looks alike; so the
slots are hashed into a bitmap, in which even strangers share a few bits.

Added here: looking up and linking are one traversal; the documents of a group are looked up at once and compared with
one another, which finds the duplicates within a batch that bands miss; the cut is calibrated (the paper's bitmap
distance of 0.30 means a similarity of 0.82, not 0.7), and candidates can be checked on MinHash slots or on the shingles
themselves; every batch is one record of a log, so that a killed run loses nothing, and next week's goes on.

Public code: Kibnelson/rad_fuzzy_dedup_vectordb. arXiv:2606.03001.

>>> from assay.data import dedup
>>> texts = ["the quick brown fox jumps over the lazy dog", "something else altogether stands in this line"]
>>> dedup([*texts, texts[0]]).tolist()
[True, True, False]
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.data.fold import generate as generate
from assay.data.fold import truth as truth
from assay.data.fold.crashing import Job
from assay.data.fold.decide import Settings as Settings
from assay.data.fold.index import Answer as Answer
from assay.data.fold.index import Fold as Fold
from assay.data.fold.rivals import TAU as TAU
from assay.data.fold.rivals import Deduplicator
from assay.data.fold.rivals import Durable as Durable
from assay.data.fold.rivals import contenders as contenders
from assay.data.fold.sketch import sketched as sketched
from assay.data.store.blocking import wait
from assay.data.store.memory import MemStore
from assay.record import measures
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured
from assay.sim.scratch import scratch
from assay.sim.streams import stream

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL
use_when = (
    "A corpus keeps growing and each new batch must be compared with everything kept: the index is on disk, survives "
    "being killed, and is never rebuilt."
)
avoid_when = (
    "The bands of all documents fit into memory and losing them is no matter: a table of bands finds nearly the "
    "same duplicates faster (see the table)."
)
own_input = "assay dedup examples/news.jsonl --out clean --index index"
references = (
    "MinHash: Broder, On the resemblance and containment of documents, 1997.",
    "Navigable small-world graphs: Malkov and Yashunin, TPAMI 2020.",
)
offers = {"crashable": Job, "deduper": Fold}

SHARED = ("/usr/share", "/usr/include")
TEXT = (".py", ".pyi", ".h", ".txt", ".md", ".rst")
LONGEST = 10_000  # bytes of a file that are read
BATCH = 200
CORPORA = ("generated", "machine")
PEERS = ("datasketch", "rensa")


def dedup(texts: Sequence[str], *, tau: float = 0.7, by: str = "bands", batch: int = 2000) -> NDArray[np.bool_]:
    """Which texts to keep: the first of any whose word 5-grams are alike by tau or more.

    In memory; for a corpus that grows, open a :class:`Fold` on a store, or use `assay dedup`. `by` says where
    candidates come from: "bands", which are faster, or FOLD's "graph", which finds more where much is boilerplate.

    >>> dedup(["a b c d e f", "a b c d e f", "k l m n o p"]).tolist()
    [True, False, True]
    """
    fold = Fold(Settings(tau=tau, by=by))
    wait(fold.open(MemStore()))
    spans = [range(first, min(first + batch, len(texts))) for first in range(0, len(texts), batch)]
    kept = [wait(fold.observe([str(i) for i in span], texts[span.start : span.stop])) for span in spans]
    return np.concatenate(kept) if kept else np.zeros(0, np.bool_)


# ------------------------------------------------------------------------------------------- the study


@cache
def files_here() -> list[str]:
    """Licences, documentation and sources that are installed on this machine."""
    folders = [*SHARED, *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib"))]
    return sorted(
        {f"{at}/{name}" for folder in folders for at, _, names in os.walk(folder) for name in names if _is_text(name)}
    )


def machine(limit: int, seed: int) -> list[str]:
    """Files of this machine in a random order, as far as they are text: really written, really copied around."""
    paths, texts = files_here(), list[str]()
    for place in stream(seed, "fold", "machine").permutation(len(paths)):
        if len(texts) == limit:
            break
        with suppress(OSError):
            with Path(paths[int(place)]).open("rb") as file:
                text = file.read(LONGEST).decode("utf-8", "replace")
            if text.strip() and "\0" not in text:
                texts.append(text)
    return texts


def _is_text(name: str) -> bool:
    return name.endswith(TEXT) or name.lower().startswith(("copyright", "licen", "readme"))


def texts_of(corpus: str, documents: int, seed: int) -> list[str]:
    """A corpus by name."""
    if corpus == "machine":
        return machine(documents, seed)
    return [text for some in generate.corpus(documents, seed) for text in some]


def judged(keep: NDArray[np.bool_], duplicate: NDArray[np.bool_]) -> dict[str, Any]:
    """Recall and precision of what was taken out."""
    right = int((~keep & duplicate).sum())
    out, there = int((~keep).sum()), int(duplicate.sum())
    return {"recall": right / there if there else None, "precision": right / out if out else None}


def side_by_side(
    texts: Sequence[str], makers: dict[str, Callable[[], Deduplicator]], batch: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Everybody on the same batches, in turns: what each kept, and the seconds of every batch."""
    made = {name: make() for name, make in makers.items()}
    kept: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in made}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    worked: dict[str, list[float]] = {name: [] for name in made}  # by the processor
    names = list(made)
    for turn, first in enumerate(range(0, len(texts), batch)):
        some = texts[first : first + batch]
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            began, spent = time.perf_counter(), time.process_time()
            kept[name].append(made[name].observe(some))
            seconds[name].append((time.perf_counter() - began) / len(some))
            worked[name].append((time.process_time() - spent) / len(some))
        progress(first + len(some), len(texts))
    return {
        name: {
            "index": made[name], "keep": np.concatenate(kept[name]), "seconds": seconds[name], "worked": worked[name],
        }
        for name in made
    }  # fmt: skip


def trial(corpus: str, documents: int, batch: int, seed: int) -> dict[str, dict[str, Any]]:
    """Everybody on one corpus, beside the exact answer."""
    texts = texts_of(corpus, documents, seed)
    docs = sketched(texts)
    of, _ = truth.exact(docs.counts, docs.shingles, TAU)
    with scratch() as folder:
        makers = installed(contenders(folder))
        for name, make in contenders(folder / "first").items():  # compile
            if name in makers:
                make().observe(texts[:80])
        rows = {}
        for name, one in side_by_side(texts, makers, batch).items():
            warm = one["seconds"][len(one["seconds"]) // 2 :]
            size = getattr(one["index"], "nbytes", None)
            rows[name] = {
                "documents_s": 1 / float(np.median(warm)), **judged(one["keep"], of >= 0),
                "kept": int(one["keep"].sum()), "bytes_document": size and size / int(one["keep"].sum()),
            }  # fmt: skip
    return rows


def installed(makers: dict[str, Callable[[], Deduplicator]]) -> dict[str, Callable[[], Deduplicator]]:
    """Those that judge as they go and whose libraries are there."""
    return {
        name: make for name, make in makers.items()
        if name != "rescan" and (name not in PEERS or importlib.util.find_spec(name))
    }  # fmt: skip


def growth(documents: int, method: str, batch: int, seed: int) -> dict[str, Any]:
    """Documents a second of the processor of one method, early (at a twentieth of the documents) and late.

    Nobody takes turns with it here, so that the clock on the wall would tell who else was on the machine.
    """
    with scratch() as folder:
        made, seconds = contenders(folder)[method](), []
        for some in generate.corpus(documents, seed, batch=batch):
            began = time.process_time()
            made.observe(some)
            seconds.append((time.process_time() - began) / len(some))
    window = max(1, len(seconds) // 20)
    early, late = seconds[window : 3 * window], seconds[-2 * window :]
    return {"early_s": 1 / float(np.median(early)), "late_s": 1 / float(np.median(late)),
            "late_over_early": float(np.median(early)) / float(np.median(late))}  # fmt: skip


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Generated documents and the files of this machine, and what becomes of the pace as the index grows."""
    documents = lab.pick(quick=800, full=100_000)
    some = lab.with_seeds(quick=2, full=3)
    batch = lab.pick(quick=BATCH, full=2_000)
    cases = [{"corpus": corpus, "documents": documents, "batch": batch} for corpus in CORPORA]
    grown = [{"documents": lab.pick(quick=3_000, full=300_000), "method": method, "batch": batch}
             for method in ("fold", "fold-bands", "rescan")]  # fmt: skip
    ops, mixes = lab.pick(quick=9, full=260), lab.pick(quick=3, full=60)
    return {
        "quality": some.run(trial, cases, per="method", alone=True),
        "growth": some.run(growth, grown, alone=True),
        "crashes": lab.with_seeds(quick=1, full=1).run(crashes, [{"ops": ops, "mixes": mixes}]),
    }


def crashes(ops: int, mixes: int, seed: int) -> dict[str, Any]:
    """The crash lab on FOLD: how many cases were tried, and in how many every rule held."""
    from assay.data.crash.lab import examine

    report = examine(Job, ops, seed=seed, mixes=mixes)
    return {"changes": report.changes, "cases": report.cases, "held": report.cases - len(report.findings)}


def plot(table: pl.DataFrame) -> alt.Chart:
    """Recall beside pace: right and up is better."""
    import altair as alt

    quality = table.filter(pl.col("experiment") == "quality")
    means = quality.group_by("corpus", "method", maintain_order=True).agg(pl.col("documents_s", "recall").mean())
    means = means.with_columns(kind=pl.col("method").str.split("-").list.first())
    pace = alt.X("documents_s:Q", scale=alt.Scale(type="log"), title="documents a second (log), the index warm")
    recall = alt.Y("recall:Q", scale=alt.Scale(zero=False), title="recall against exact similarity")
    dots = alt.Chart(means).mark_point(filled=True, size=90).encode(x=pace, y=recall, color="kind:N", shape="corpus:N")
    names = alt.Chart(means).mark_text(dx=6, align="left", fontSize=10).encode(x=pace, y=recall, text="method:N")
    title = alt.Title("Duplicates found, and how fast", subtitle="Everybody on the same batches, in turns")
    chart: alt.Chart = (dots + names).properties(width=560, height=320, title=title)
    return chart


# ------------------------------------------------------------------------------------------ the claims

INDEXES = ("graph-slots", "graph-hamming", "bands-capped")  # approximate ones, of the kinds the paper compares with
SHARING = (*INDEXES, "bands-14", "bands-28")  # sketch with the same compiled code: the index makes the difference
ONLINE = (*SHARING, "fold-bands-slots", *PEERS)
LARGE = 50_000  # documents from which on a share found says something of large collections


def _of(column: str, method: str, corpus: str) -> measures.Measure:
    return measures.mean(column, method=method, corpus=corpus, experiment="quality")


def _faster(rival: str, corpus: str, column: str = "documents_s", ours: str = "fold-slots") -> measures.Measure:
    def measure(table: pl.DataFrame) -> Estimate:
        if table.filter((pl.col("method") == rival) & (pl.col("corpus") == corpus)).is_empty():
            raise NotMeasured(f"{rival} was not run on {corpus}: pip install {rival}, or another machine")
        chosen = {"of": {"method": ours}, "to": {"method": rival}}
        return measures.ratio(column, **chosen, corpus=corpus, experiment="quality")(table)

    return measure


def _at_equal_recall(table: pl.DataFrame) -> Estimate:
    """FOLD's pace over that of the fastest rival that finds as many duplicates, to half a point, on generated text.

    All of them decide on the same slots.
    """
    quality = table.filter((pl.col("experiment") == "quality") & (pl.col("corpus") == "generated"))
    means = quality.group_by("method").agg(pl.col("documents_s", "recall").mean())
    mine = float(means.filter(pl.col("method") == "fold-slots")["recall"][0])
    equal = means.filter(pl.col("method").is_in(ONLINE) & (pl.col("recall") >= mine - 0.005)).sort("documents_s")
    if equal.is_empty():
        raise NotMeasured("no rival finds as many duplicates as FOLD")
    rival = str(equal["method"][-1])
    return measures.best({rival: _faster(rival, "generated")})(table)


def _at_size(measure: measures.Measure) -> measures.Measure:
    """The paper's shares are those of its largest collections: a few hundred documents say nothing of them."""

    def measured(table: pl.DataFrame) -> Estimate:
        most = int(table.filter(pl.col("experiment") == "quality")["documents"].max())  # type: ignore[arg-type]
        if most < LARGE:
            raise NotMeasured(f"the collections here have {most} documents; --full has 100,000")
        return measure(table)

    return measured


claims = [
    Claim("throughput", measures.best({f"{r}, {c}": _faster(r, c) for r in SHARING for c in CORPORA})),
    Claim("recall", _at_size(measures.best({corpus: _of("recall", "fold-slots", corpus) for corpus in CORPORA}, min))),
    Claim("rival", _at_size(measures.best({f"{r}, {c}": _of("recall", r, c) for r in INDEXES for c in CORPORA}))),
    Claim("large", measures.not_here("it is about 30 million documents; the full size here is 300,000")),
    Claim(
        "precision",
        measures.best({corpus: _of("precision", "fold", corpus) for corpus in CORPORA}, min),
        asks="Of what is taken out, at least 98 % has an exact similarity of 0.7 or more to something kept.",
        kind=Kind.AT_LEAST,
        value=0.98,
        unit="share",
    ),
    Claim(
        "equal-recall",
        _at_equal_recall,
        asks="FOLD is faster than the fastest rival that finds as many duplicates.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "datasketch",
        _faster("datasketch", "generated"),
        asks="FOLD is faster than datasketch, sketching included, whose share of the difference is not told apart.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "rensa",
        _faster("rensa", "generated"),
        asks="FOLD is faster than rensa, sketching included.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "bands",
        _faster("rensa", "generated", ours="fold-bands-slots"),
        asks="With candidates from bands, deciding as rensa does, the durable index is faster than rensa's in memory.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "bitmap",
        _faster("graph-slots", "generated", "recall", "fold-minhash"),
        asks="A graph over bitmaps finds more duplicates than one over MinHash slots, at equal effort.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "cut",
        _faster("fold-paper", "generated", "recall", "fold-none"),
        asks="With a cut that means a similarity of 0.7, more duplicates are found than with the paper's 0.30.",
        kind=Kind.RATIO,
        toward="up",
    ),
    Claim(
        "pace",
        measures.mean("late_over_early", method="fold", experiment="growth"),
        asks="With ten times as many documents, a second of the processor does at least 0.7 of what it did.",
        kind=Kind.AT_LEAST,
        value=0.7,
        unit="times",
    ),
    Claim(
        "rescanning",
        measures.mean("late_over_early", method="rescan", experiment="growth"),
        asks="The pipeline that sorts all bands for every batch falls to 0.334 times its pace or less.",
        kind=Kind.AT_MOST,
        value=0.334,
        unit="times",
    ),
    Claim(
        "nothing-lost",
        measures.probability("held", "cases", experiment="crashes"),
        asks="However a run is killed, every decision that was told stays, and the rest come out as without.",
        kind=Kind.EVERY,
    ),
]
