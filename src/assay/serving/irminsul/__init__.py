"""Irminsul: prompt text that moved is found by its hash, and its MLA cache reused after turning 64 numbers a token.

An agent sends nearly the same long prompt again and again, but with a new time in its first line, its tools in another
order, notes put in, old turns dropped. A prefix cache stops at the first changed token. Irminsul cuts what is left by
content, so that an insertion moves the cuts and does not change them, and looks the segments up by hash. Multi-head
latent attention makes reuse cheap: a row of its cache is a latent that knows no position and one small rotary key, and
turning that key by the distance moved is exact. What is not exact is the depth: deeper rows have seen another left
context. So the first tokens of every reused segment are computed again, and outputs are close, not equal.

The study measures three things. Recovery: tokens reused beyond an exact-prefix cache (to the token, the strongest
kind) on generated agent loops, short and long, and on append-only chats. Consistency, on the long ones, in which most
is reused: greedy answers and next-token predictions against an uncached run. The paper's three models are not at hand,
so three small MLA mixture-of-experts models of different shapes stand in (`mla_standins`); they recall half of what
they do on short loops, the claims are answered by the worst of them, and say nothing about models of billions. The
same tests are put to two caches that are wrong, one that does not turn keys and one that reuses other segments' rows: a
test that lets them pass would say nothing. Cost: seconds on a small model net of hashing and turning, for real; joules
by the roofline model of DeepSeek-V2-Lite on one H200, each prompt prefilled by itself.

arXiv:2605.05696.

>>> from assay.workloads.agents import sessions
>>> recovery(sessions("header", seed=0, count=1, turns=3)).select("prompt_tokens", "prefix", "reused")
shape: (3, 3)
┌───────────────┬────────┬────────┐
│ prompt_tokens ┆ prefix ┆ reused │
│ ---           ┆ ---    ┆ ---    │
│ i64           ┆ i64    ┆ i64    │
╞═══════════════╪════════╪════════╡
│ 893           ┆ 0      ┆ 0      │
│ 1040          ┆ 6      ┆ 649    │
│ 1194          ┆ 5      ┆ 835    │
└───────────────┴────────┴────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals, measures, timing
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, Kind, NotMeasured, Stated, Verdict
from assay.record.verdicts import judge
from assay.serving.interface import Hit, Request
from assay.serving.irminsul import mla_standins
from assay.serving.irminsul.segment_prefill import METHODS, Prefiller, divergence, predictions
from assay.serving.irminsul.segment_store import Ids, Plan, PrefixCache, SegmentStore, digest, plan, remember
from assay.sim import hardware, models
from assay.sim.roofline import MEMORY_EFFICIENCY, layout
from assay.sim.tiny_lm import nll, rotate, rotation
from assay.sim.trust import sentence
from assay.workloads import agents
from assay.workloads.agents import Session, Style

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.REAL
use_when = (
    "Agents send long prompts whose text repeats at shifting places (a time in the header, tools re-ordered, notes "
    "inserted, history cut) to a model with multi-head latent attention."
)
avoid_when = (
    "Prompts only grow at the end (a prefix cache finds everything), answers must be bit for bit those of an uncached "
    "run, or keys are rotated over their whole width (GQA: 16 times the work). Consistency was measured on small "
    "stand-in models: check it on yours before relying on it."
)
needs = ("torch",)
trust = sentence("roofline")
own_input = "assay compare irminsul --transcripts examples/transcripts.jsonl"
references = (
    "Multi-head latent attention: DeepSeek-AI, DeepSeek-V2, arXiv:2405.04434.",
    "Selective recomputation: Yao et al., CacheBlend, EuroSys 2025, arXiv:2405.16444.",
    "Content-defined chunking: Muthitacharoen, Chen and Mazières, SOSP 2001; Xia et al., FastCDC, USENIX ATC 2016.",
)

LAYOUT = "h200:deepseek-v2-lite"
HASH_RATE = 1e9  # bytes/s of cutting and hashing on one core (assumed; the timing experiment measures it)
CORE_WATTS = 15.0  # of that core (assumed)
QUOTES = 20  # facts in the answer whose tokens are predicted
LOOPS = ("header", "reorder", "insert", "truncate", "all")
LONG = Style(system=60, tools=12, tool=16, result=60, notes=3, window=5)  # prompts of five thousand tokens and more
SHORT = Style(system=20, tools=4, tool=12, result=12, quotes=20, notes=1, window=4)  # of about a thousand
STYLES = {"short": SHORT, "long": LONG}
FOUND_BY = ("irminsul", "fixed-blocks", "exact-prefix", "segment-first")
WRONG = ("no-rotation", "wrong-segment")  # caches that a test of consistency must catch
JUDGED = ("differs", "kl_mean")  # what is judged of consistency
SAID_BY = ("irminsul", *WRONG, "no-carve-out", "cacheblend", "exact-prefix")


class FixedBlocks(SegmentStore):
    """The naive store: blocks of the mean length, counted from where the prefix ends."""

    def cut(self, ids: Ids) -> list[tuple[int, int, bytes]]:
        """Whole blocks: start, stop, name."""
        size = self.chunk[1]
        return [(i, i + size, digest(ids[i : i + size], self.model)) for i in range(0, len(ids) - size + 1, size)]


def caches(method: str, capacity: float = np.inf) -> tuple[PrefixCache | None, SegmentStore | None]:
    """The caches of a method. With a bounded capacity (in tokens) prefix and segments get half of it each."""
    match method:
        case "exact-prefix":
            return PrefixCache(capacity), None
        case "segment-first":
            return None, SegmentStore(capacity)
        case "fixed-blocks":
            return PrefixCache(capacity / 2), FixedBlocks(capacity / 2)
        case "irminsul":
            return PrefixCache(capacity / 2), SegmentStore(capacity / 2)
    raise ValueError(f"no method '{method}'")


def recovery(
    transcripts: str | Path | Iterable[Session], method: str = "irminsul", capacity: float = np.inf
) -> pl.DataFrame:
    """What a cache would find in your prompts, one row each: tokens, those in an exact prefix, those reused beyond.

    `transcripts` is a file of OpenAI chats (JSONL with `messages`; see `agents.read_chats`) or lists of token ids.

    >>> chats = agents.sessions("chat", seed=0, count=2, turns=4)
    >>> table = recovery(chats)
    >>> table["reused"].sum() / table["prompt_tokens"].sum() < 0.01  # nothing left to find
    True
    """
    given = agents.read_chats(transcripts) if isinstance(transcripts, str | Path) else transcripts
    prefixes, segments = caches(method, capacity)
    rows = []
    for ids in agents.in_turn(given):
        found = plan(ids, prefixes, segments)
        rows.append(_row(found))
        remember(found, prefixes, segments)
    return pl.from_dicts(rows)


def _row(found: Plan) -> dict[str, Any]:
    again = found.computed
    for reuse in found.reuses:
        again[reuse.start : reuse.stop] = True
    hit, miss = prefill_joules(found.computed, found.reused), prefill_joules(again, 0)
    return {
        "prompt_tokens": len(found.ids), "prefix": found.prefix, "reused": found.reused, "fresh": found.fresh,
        "joules": hit, "joules_again": miss,
    }  # fmt: skip


def prefill_joules(computed: np.ndarray[Any, np.dtype[np.bool_]], reused: int) -> float:
    """Joules to prefill a prompt alone on `LAYOUT`: the computed tokens, and finding and turning the reused ones.

    Computing follows the roofline, idling included. Turning reads and writes the rotary keys of all layers at memory
    speed while the device draws all it may; cutting and hashing the tokens occupies one core.

    >>> everything, half = np.ones(4096, bool), np.arange(4096) >= 2048
    >>> 0.4 < prefill_joules(half, reused=2048) / prefill_joules(everything, reused=0) < 0.8
    True
    """
    cost, shape, gpu = layout(LAYOUT), models.model("deepseek-v2-lite"), hardware.device("h200")
    assert cost.energy is not None and shape.latent is not None
    positions = np.flatnonzero(computed)
    joules = 0.0
    for start in range(0, len(positions), 8192):  # chunked prefill
        chunk = positions[start : start + 8192]
        pairs = float((chunk + 1).sum())
        seconds = cost.tokens[len(chunk)] + cost.prefill_fixed + cost.prefill_token * len(chunk)
        seconds += cost.prefill_pair * pairs
        joules += float(cost.energy.joules[len(chunk)] + cost.energy.pair * pairs + cost.energy.idle_watts * seconds)
    if reused:
        turned = 2 * reused * shape.layers * shape.latent.rope * 2  # bytes: bf16, read and written
        joules += gpu.tdp_watts * turned / (gpu.mem_bw * MEMORY_EFFICIENCY)
        joules += CORE_WATTS * 8 * len(computed) / HASH_RATE
    return joules


# ------------------------------------------------------------------------------------------- the study


def recover(
    style: str, kind: str, capacity: int, turns: int, methods: Sequence[str], seed: int
) -> dict[str, dict[str, Any]]:
    """Every method on the same sessions."""
    many = agents.sessions(kind, seed, count=2, turns=turns, style=STYLES[style])
    outcome = {}
    for method in methods:
        table = recovery(many, method, capacity or np.inf)
        total = int(table["prompt_tokens"].sum())
        hits = table.filter(pl.col("reused") > 0)
        outcome[method] = {
            "prompt_tokens": total,
            "prefix_share": int(table["prefix"].sum()) / total,
            "reused_share": int(table["reused"].sum()) / total,
            "joules": float(hits["joules"].sum()) if len(hits) else None,
            "joules_again": float(hits["joules_again"].sum()) if len(hits) else None,
        }
    return outcome


def consistency(
    model: str, style: str, kind: str, calls: int, weights: str, methods: Sequence[str], seed: int
) -> dict[str, dict[str, Any]]:
    """Answers of one stand-in to the last of some calls, each method with the caches it has filled by then.

    The answer that was really given is predicted token by token after a cached and after an uncached prefill: `differs`
    is the share of its tokens at which another word is the likeliest, `kl_mean` the divergence in nats.
    """
    import torch

    torch.set_num_threads(1)
    params = mla_standins.loaded(weights)[model]
    quoting = replace(STYLES[style], quotes=QUOTES)
    *prompts, following = agents.sessions(kind, seed, count=1, turns=calls + 1, style=quoting)[0]
    truth = _answer(following, QUOTES)
    recompute = Prefiller(params, METHODS["recompute"])
    _, first = recompute(prompts[0])  # what every method would compute for the first prompt
    correct = predictions(params, *recompute(prompts[-1]), truth)
    outcome = {}
    for method in methods:
        server = Prefiller(params, METHODS[method])
        server.learn(prompts[0], first)
        after = [server(ids) for ids in prompts[1:]][-1]
        told = predictions(params, *after, truth)
        outcome[method] = {
            "differs": float((told.argmax(-1) != correct.argmax(-1)).float().mean()),
            "kl_mean": divergence(correct, told),
            "nll_mean": float(nll(told, truth).mean()),
            "nll_recompute": float(nll(correct, truth).mean()),
            "recalled": float((told.argmax(-1).numpy() == truth)[3::5].mean()),
            "recalled_recompute": float((correct.argmax(-1).numpy() == truth)[3::5].mean()),
            "computed_share": (server.last.fresh + server.again) / len(prompts[-1]),
            "reused_share": server.last.reused / len(prompts[-1]),
        }
    return outcome


def _answer(following: Ids, quotes: int) -> Ids:
    """What the assistant went on to say, read off the next prompt: its recalled facts."""
    speaks = np.flatnonzero(following == agents.WORDS.index("<assistant>"))[-2]
    return following[speaks + 1 : speaks + 1 + 5 * quotes]


def seconds(weights: str, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """The third prompt of an agent loop on a stand-in: cutting, hashing, turning and computing, taking turns.

    Computing everything is the time to beat: with a prefix of six tokens a cache only costs the causal kernel.
    """
    import torch

    torch.set_num_threads(1)
    params = mla_standins.loaded(weights)["many-experts"]
    prompts = agents.sessions("header", seed, count=1, turns=3, style=Style())[0]
    servers = {name: Prefiller(params, METHODS[name]) for name in ("recompute", "exact-prefix", "irminsul")}
    known = [servers["recompute"](ids)[1] for ids in prompts[:2]]
    for server in servers.values():
        for ids, rows in zip(prompts, known, strict=False):
            server.learn(ids, rows)
    contenders: dict[str, Callable[[], Any]] = {
        name: lambda server=server: server.prefill(prompts[2])  # type: ignore[misc]
        for name, server in servers.items()
    }
    contenders["plan only"] = lambda: plan(prompts[2], servers["irminsul"].prefixes, servers["irminsul"].segments)
    timed = timing.interleave(contenders, rounds)
    tokens = len(prompts[2])
    return {name: {"seconds": timing.median(times), "prompt_tokens": tokens} for name, times in timed.items()}


def turning(rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """Turn the keys of 1024 tokens of one layer: MLA's one rotary key of 64, GQA's eight heads of 128."""
    import torch

    torch.set_num_threads(1)
    by = torch.full((1024,), 100 + seed)
    widths = {"mla": (1, 64), "gqa": (8, 128)}
    keys = {attn: torch.ones(1, 1024, heads, width) for attn, (heads, width) in widths.items()}
    contenders: dict[str, Callable[[], Any]] = {
        attn: lambda key=key: rotate(key, rotation(by, key.shape[-1], 1e4))  # type: ignore[misc]
        for attn, key in keys.items()
    }
    timed = timing.interleave(contenders, rounds)
    return {
        attn: {"seconds": timing.median(timed[attn]), "key_bytes": 2 * h * w, "key_flops": 3 * h * w}
        for attn, (h, w) in widths.items()
    }


EXPERIMENTS: dict[str, Callable[..., dict[str, dict[str, Any]]]] = {
    "recovery": recover, "consistency": consistency, "seconds": seconds, "turning": turning,
}  # fmt: skip


def trial(experiment: str, seed: int, **case: Any) -> dict[str, dict[str, Any]]:
    """One case of any experiment: with one entry for all, they share processes, and each process loads torch once."""
    return EXPERIMENTS[experiment](**case, seed=seed)


def study(lab: Lab) -> Tables:
    """Recovery on six kinds of traffic, consistency of three models, and what it costs.

    The quick size answers the claims, and leaves other kinds, the other methods and the timings to the full size.
    """
    weights = mla_standins.WEIGHTS
    if lab.size == "full":
        weights = lab.artefacts / "irminsul.safetensors"
        mla_standins.train_all(path=weights)
    found = {"turns": lab.pick(quick=12, full=24), "methods": lab.pick(quick=FOUND_BY[:2], full=FOUND_BY)}
    said = {"experiment": "consistency", "calls": 3, "weights": str(weights)}
    spoken = [
        {"style": style, "model": model, "kind": kind, "methods": methods, **said}
        for style, methods in (("long", lab.pick(quick=SAID_BY[:1], full=SAID_BY)), ("short", SAID_BY[:3]))
        for model in mla_standins.SHAPES
        for kind in lab.pick(quick=LOOPS[:1], full=LOOPS)
    ]
    sizes = [(style, kind, 0) for style in STYLES for kind in (*LOOPS, "chat")]
    sizes += lab.pick(quick=[], full=[("long", "header", 10_000)])
    cases = [
        {"experiment": "recovery", "style": style, "kind": kind, "capacity": size, **found}
        for style, kind, size in sizes
    ]
    few = lab.with_seeds(quick=5, full=6)
    tables = {
        "consistency": few.run(trial, spoken, per="method").drop("calls", "weights", "methods"),
        "recovery": lab.run(trial, cases, per="method").drop("turns", "methods"),
    }
    if lab.size == "full":
        clocked = [{"experiment": "seconds", "weights": str(weights), "rounds": 15}]
        clocked += [{"experiment": "turning", "rounds": 15}]
        tables["clocked"] = lab.run(trial, clocked, per="method", alone=True).drop("weights", "rounds")
    return tables


def plot(table: pl.DataFrame) -> alt.Chart:
    """Where the tokens of a prompt come from, by kind of traffic."""
    import altair as alt

    chosen = table.filter(experiment="recovery", method="irminsul", style="long", capacity=0)
    shares = chosen.group_by("kind", maintain_order=True).agg(
        pl.col("prefix_share").mean().alias("exact prefix"), pl.col("reused_share").mean().alias("moved segment")
    )
    long = shares.unpivot(index="kind", variable_name="source", value_name="share")
    title = alt.Title("Prompt tokens that need no prefill", subtitle="Mean over seeds; the rest is computed")
    chart: alt.Chart = (
        alt.Chart(long)
        .mark_bar()
        .encode(
            y=alt.Y("kind:N", sort=[*LOOPS, "chat"], title=None),
            x=alt.X(
                "share:Q", title="share of prompt tokens", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
            ),
            color=alt.Color("source:N"),
        )
        .properties(width=520, height=220, title=title)
    )
    return chart


# ------------------------------------------------------------------------------------------ the claims


LOOPS_FOUND = {"experiment": "recovery", "capacity": 0}
reuse = measures.best(
    {
        f"{style} prompts, {kind}": measures.mean(
            "reused_share", **LOOPS_FOUND, method="irminsul", style=style, kind=kind
        )
        for style in STYLES
        for kind in LOOPS
    }
)


def energy_change(table: pl.DataFrame) -> Estimate:
    """Joules of all long prompts with a hit against computing what the prefix left, over all agent loops."""
    chosen = measures.rows(table, {**LOOPS_FOUND, "method": "irminsul", "style": "long"})
    sums = chosen.filter(pl.col("kind").is_in(LOOPS)).group_by("seed").agg(pl.col("joules", "joules_again").sum())
    times = intervals.ratio(sums["joules"].to_list(), sums["joules_again"].to_list())
    return Estimate(times.value - 1, times.low - 1, times.high - 1, times.n)


def off(column: str, model: str, method: str = "irminsul", style: str = "long") -> measures.Measure:
    """How far a stand-in's outputs are from its own uncached run's, on the kind of loop in which most is reused."""
    return measures.mean(column, experiment="consistency", style=style, kind="header", model=model, method=method)


def worst_model(column: str) -> measures.Measure:
    """The stand-in that is farthest off."""
    return measures.best({model: off(column, model) for model in mla_standins.SHAPES}, max)


def caught(table: pl.DataFrame) -> Estimate:
    """The share of models and wrong caches that the record's own rule for "unchanged" does not let pass."""
    test = Stated("", "", Kind.UNCHANGED)
    tried = [(model, wrong, column) for model in mla_standins.SHAPES for wrong in WRONG for column in JUDGED]
    passed = [
        f"{wrong} on {model} by '{column}'"
        for model, wrong, column in tried
        if judge(test, off(column, model, wrong, "short")(table)).verdict is Verdict.REPRODUCED
    ]
    share = intervals.clopper_pearson(len(tried) - len(passed), len(tried))
    return replace(share, cases=f"passed: {', '.join(passed)}" if passed else "")


def farther_where_all_moves(table: pl.DataFrame) -> Estimate:
    """The mean divergence of the three stand-ins in loops with every disturbance, less that with a new header alone."""
    if table.filter(experiment="consistency", kind="all").is_empty():
        raise NotMeasured("the quick size asks for consistency with a new header alone; the full size asks for all")
    rows = measures.rows(table, {"experiment": "consistency", "style": "long", "method": "irminsul"})
    means = rows.group_by("kind", "seed").agg(pl.col("kl_mean").mean()).sort("seed")
    everything, header = (means.filter(kind=kind)["kl_mean"] for kind in ("all", "header"))
    return intervals.bootstrap((everything - header).to_list())


def over_fixed_blocks(table: pl.DataFrame) -> Estimate:
    """Tokens that content-defined cuts find again over those of fixed blocks, over all long agent loops."""
    rows = table.filter(pl.col("kind").is_in(LOOPS)).filter(style="long", **LOOPS_FOUND)
    sums = rows.group_by("method", "seed").agg(found=(pl.col("reused_share") * pl.col("prompt_tokens")).sum())
    return measures.ratio("found", of={"method": "irminsul"}, to={"method": "fixed-blocks"})(sums)


claims = [
    Claim("reuse", reuse),
    Claim("energy", energy_change, evidence=Evidence.MODEL),
    Claim("answers", worst_model("differs")),
    Claim("predictions", worst_model("kl_mean")),
    Claim(
        "wrong-caches",
        caught,
        asks="Both tests of consistency fail on each of the three stand-ins for a cache that does not turn keys and "
        "for one that reuses the rows of other segments (on short prompts, which are the harder to fail on).",
        kind=Kind.EVERY,
    ),
    Claim(
        "all-disturbed",
        farther_where_all_moves,
        asks="Irminsul's predictions are farther from those of uncached runs where tools, notes and history move as "
        "well than where only the header changes.",
        kind=Kind.DIFFERENCE,
        unit="nats",
        toward="up",
    ),
    Claim(
        "over-fixed-blocks",
        over_fixed_blocks,
        asks="Irminsul's content-defined cuts find more tokens again than fixed blocks of the same mean length, over "
        "all agent loops with long prompts.",
        kind=Kind.RATIO,
        toward="up",
    ),
]


# --------------------------------------------------------------------------------- in the serving engine


def words(request: Request) -> Ids:
    """A request's text as ids; empty where the trace has none."""
    return agents.tokens(request.text or "")


class Irminsul:
    """A `CacheLayer`: on each instance a store of segments, asked for what the prefix cache does not have.

    `content` gives a request's token ids. Where their number is not the request's (words instead of tokens), what is
    found is scaled to it.

    >>> text = " ".join(map(str, range(900)))
    >>> layer = Irminsul()
    >>> layer.lookup(Request(0, 0.0, prompt=2000, text=text), instance=0, prefix=0).tokens
    0
    >>> layer.lookup(Request(1, 9.0, prompt=2003, text="12:04 " + text), instance=0, prefix=0).tokens > 1500
    True
    """

    def __init__(self, content: Callable[[Request], Ids] = words, capacity: float = np.inf, rate: float = 1e9) -> None:
        self.content, self.capacity = content, capacity
        self.rate = rate  # tokens/s that are found and turned
        self._stores: dict[int, SegmentStore] = {}

    def lookup(self, request: Request, instance: int, prefix: int) -> Hit:
        """Prompt tokens beyond the prefix that this instance has seen at another place."""
        ids = self.content(request)
        if not len(ids):
            return Hit(0)
        store = self._stores.setdefault(instance, SegmentStore(self.capacity))
        scale = request.prompt / len(ids)
        found = plan(ids, int(prefix / scale), store)
        remember(found, None, store)
        return Hit(int(found.reused * scale), found.reused * scale / self.rate)
