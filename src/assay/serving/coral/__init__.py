"""Coral: reduce each model's replica designs to the undominated ones, then rent GPUs for all models in one program.

Whoever serves several models on rented GPUs has two choices that depend on each other: which nodes to rent, and how
each model's replicas use them. Taken apart, each is easy and the sum is poor; taken together, there are a hundred
thousand ways to build a replica. But a plan sees a design only through the nodes it takes and the requests a second it
serves within the SLO. So, once per model, all designs are rated and only those are kept that no other replaces at no
more nodes and no less rate (`replica_designs`): some dozens. What is left is a small integer program over all models
(`gpu_rental`), solved again whenever demand, prices or availability move (`rental_schedule`).

The rates come from a roofline cost model, prices and availability are generated, demand is a public chat trace dealt
out to six models. So what is compared is ways to plan on one and the same market; the dollars are not a cloud's. Rates
are averages, and a trace is not: a plan is made for `HEADROOM` times the demand, the smallest tenth at which every
model attained 95 % with seeds 100 to 104 (the study's own begin at 0), and every plan of Coral's is served in the
simulator; `corrected` raises the factor of a model that misses.
Where instances differ, LMETRIC's count of requests on board is taken as a share of the planned one.

Coral, arXiv:2605.04357.

>>> from assay.workloads.gpu_market import generate
>>> market = generate(["1xl40s@us", "4xa100@us", "4xh100@us"], seed=1)
>>> models = [Service("llama-3-8b", SLO(ttft=1.0, tpot=0.05), Lengths(1000, 200)),
...           Service("llama-3-70b", SLO(ttft=3.0, tpot=0.1), Lengths(1000, 200))]
>>> rented = plan(models, market, [20.0, 6.0])
>>> rented.complete, len(rented.fleet(models)) > 0
(True, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from assay.record import intervals, measures
from assay.record.errors import BadInput
from assay.record.tables import Tables
from assay.record.types import Claim, Estimate, Evidence, NotMeasured
from assay.serving.coral import rental_baselines as rules
from assay.serving.coral.gpu_rental import Choices, Floats, Rental, solve
from assay.serving.coral.rental_schedule import Rollout, account, follow
from assay.serving.coral.rental_served import admitted, met, peak, rolled_out, serve
from assay.serving.coral.replica_designs import Lengths, Service, designs, enumerate_designs
from assay.serving.engine import components
from assay.serving.interface import SLO
from assay.sim.models import model
from assay.sim.random import stream
from assay.sim.trust import sentence
from assay.workloads import gpu_market
from assay.workloads.chat import read_or_hour
from assay.workloads.gpu_market import Config, Market, Offer
from assay.workloads.requests import Requests

if TYPE_CHECKING:
    import altair as alt

    from assay.record.lab import Lab

evidence = Evidence.MODEL  # demand is a replayed trace; rates, prices and availability are modelled
use_when = (
    "Several models share a budget of rented GPUs of many kinds whose prices and availability move: a platform that "
    "re-plans every few minutes which nodes to hold and how each model is cut over them."
)
avoid_when = (
    "One model on one kind of GPU (counting is enough), or demand that moves faster than weights load: then keep "
    "spare replicas instead of re-planning."
)
trust = sentence("roofline")
own_input = "assay compare coral --trace examples/models.csv --market examples/market.csv"
replays = ("azure-2023-conv",)
references = (
    "Demand: Azure LLM inference trace 2023, conversations (Patel et al., ISCA 2024).",
    "Routing of the plans that are simulated: LMETRIC, Zhang et al., OSDI 2026.",
)

HEADROOM = 1.1  # planned over expected demand
ATTAINMENT = 0.95  # of each model's requests
TARGETS = {
    "llama-3-8b": SLO(1.0, 0.05), "qwen3-30b-a3b": SLO(1.0, 0.05), "gemma-3-27b": SLO(2.0, 0.08),
    "qwen3-32b": SLO(2.0, 0.08), "llama-3-70b": SLO(3.0, 0.10), "qwen2.5-72b": SLO(3.0, 0.10),
}  # fmt: skip
NODES = ("1xl4", "4xl4", "1xl40s", "4xl40s", "2xa100", "8xa100", "1xh100", "4xh100", "8xh100", "8xh200")
CONFIGS = tuple(f"{node}@{region}" for region in ("us", "eu") for node in NODES)


# ------------------------------------------------------------------------------------------ planning


def plan(
    models: Sequence[Service],
    market: Market | Offer,
    demand: Sequence[float] | Floats,
    *,
    headroom: float = HEADROOM,
    previous: Rental | None = None,
    budget: float = np.inf,
    **options: Any,
) -> Rental:
    """What to rent, and how to use it: both stages.

    Args:
        models: what each model promises, and to which requests.
        market: `gpu_market.read("mine.csv")`, or what it offers `.at` a time.
        demand: of each model, requests a second.
        headroom: planned over expected demand.
        previous: what runs now; keeping it costs nothing.
        budget: US dollars per hour at most.
        options: of `gpu_rental.solve`.

    >>> offer = gpu_market.generate(["1xl40s", "2xh100"], seed=1).at(0)
    >>> chat = Service("llama-3-8b", SLO(ttft=1.0, tpot=0.05), Lengths(1000, 200))
    >>> rented = plan([chat], offer, [30.0])
    >>> rented.complete, bool(rented.nodes(2).sum() > 0)
    (True, True)

    Raises:
        BadInput: demands that do not go with the models, or a model that no design of this market can serve.
    """
    offer = market.at(0.0) if isinstance(market, Market) else market
    wanted = np.asarray(demand, np.float64)
    if wanted.shape != (len(models),) or not (np.isfinite(wanted) & (wanted >= 0)).all():
        raise BadInput(f"{len(models)} models need as many demands, in requests a second, at least 0")
    choices = [designs(service, offer.configs) for service in models]
    for service, some in zip(models, choices, strict=True):
        if not some:
            raise BadInput(
                f"no node of this market serves {service.model} within its SLO; relax it or add larger nodes"
            )
    weights = [service.weight for service in models]
    return solve(
        choices, offer.price, offer.available, wanted * headroom,
        weights=weights, previous=previous, budget=budget, **options,
    )  # fmt: skip


def corrected(
    choices: Choices, offer: Offer, services: Sequence[Service], requests: Requests, rounds: int = 4
) -> tuple[Rental, Floats, Floats]:
    """Plan, serve, and plan again with a tenth more headroom for the models that missed: (plan, attainment, headroom).

    The simulator is the judge of the cost model's averages. Stops when every model attains, or after `rounds`.
    """
    wanted, headroom = peak(requests, len(services)), np.full(len(services), HEADROOM)
    assert requests.model is not None
    counts = np.maximum(np.bincount(requests.model, minlength=len(services)), 1)
    for turn in range(rounds + 1):
        rental = solve(choices, offer.price, offer.available, wanted * headroom, gap=STOP, work=WORK)
        attained = met(serve(rental, services, requests), services, requests) / counts
        if (attained >= ATTAINMENT).all() or turn == rounds:
            break
        headroom = np.where(attained < ATTAINMENT, 1.1 * headroom, headroom)
    return rental, attained, headroom


# ---------------------------------------------------------------------------------------- the workload


def workload(
    path: str, rate: float, count: int, seed: int, names: Sequence[str] = (), copies: int = 1
) -> tuple[list[Service], Requests]:
    """A stretch of the trace (0: all of it) at a rate, its requests dealt out to models of unequal popularity.

    Another stretch, another deal and another order of popularity for each seed. Copies come within a minute.
    """
    names = names or tuple(TARGETS)
    whole = read_or_hour(path)
    lengths = Lengths.of(whole)
    services = [Service(name, TARGETS[name], lengths) for name in names]
    random = stream(seed, "coral", "models")
    count = count or len(whole)
    start = int(random.integers(0, len(whole) - count + 1))
    popular = random.permutation(1.0 / np.arange(1, len(names) + 1))
    drawn = random.choice(len(names), size=count * copies, p=popular / popular.sum()).astype(np.int32)
    part = whole.part(start, start + count)
    if copies > 1:
        times = np.repeat(part.arrival, copies) + random.uniform(0, 60, count * copies)
        order = np.argsort(times, kind="stable")
        columns = [np.repeat(column, copies)[order] for column in (part.prompt, part.output)]
        part = Requests.of(times[order] - times.min(), *columns)
    return services, replace(part.faster(rate / part.rate), model=drawn, models=tuple(names))


# ------------------------------------------------------------------------------------------- the study

WORK = 2000  # nodes of the search tree
STOP = 1e-3  # how far from the optimum the study's programs may stop, as a share
GENERATED = ", generated demand"  # of an experiment's name, where the trace is not at hand
BASELINES = ("single type", "independent", "fixed strategy", "fixed allocation")


def rent_by(name: str, every: Choices, services: Sequence[Service]) -> rules.Rule:
    """A rule of the comparison."""
    if name == "fixed strategy":
        return lambda *args, **options: rules.fixed_strategy(*args, every=every, **options)
    if name == "fixed allocation":
        flops = np.array([2.0 * model(service.model).active_params for service in services])
        return lambda *args, **options: rules.fixed_allocation(*args, flops=flops, **options)
    chosen: rules.Rule = {"coral": rules.joint, "single type": rules.single_type, "independent": rules.independent}[
        name
    ]
    return chosen


@lru_cache(maxsize=4)
def first_stage(services: tuple[Service, ...], configs: tuple[Config, ...]) -> tuple[Choices, Choices, float]:
    """Designs that are kept, all designs, and the seconds that finding the former took; kept for all seeds."""
    began = perf_counter()
    choices = [designs(service, configs) for service in services]
    seconds = perf_counter() - began
    return choices, [enumerate_designs(service, configs, every=False) for service in services], seconds


def on_market(
    trace: str, models: int, configs: int, supply: float, rate: float, count: int, seed: int, draw: int = 0
) -> dict[str, dict[str, Any]]:
    """Every rule on one market and demand: rent, planned service, and what the simulator makes of it."""
    seed = _drawn(seed, draw)
    services, requests = workload(trace, rate, count, seed, tuple(TARGETS)[-models:])
    offer = gpu_market.generate(CONFIGS[:configs], gpus=supply, seed=seed).at(0.0)
    choices, every, first = first_stage(tuple(services), offer.configs)
    wanted = HEADROOM * peak(requests, len(services))
    rentals = {name: rent_by(name, every, services)(choices, offer, wanted, gap=STOP) for name in ("coral", *BASELINES)}
    scarce = not rentals["coral"].complete
    rows: dict[str, dict[str, Any]] = {}
    for name, rental in rentals.items():
        rows[name] = _planned(rental) | {"scarce": scarce}
        if scarce or name == "coral":
            rows[name] |= _simulated(rental, services, requests, wanted, seed)
    rows["coral"] |= {"first_stage_seconds": first}
    if not scarce:
        _, attained, headroom = corrected(choices, offer, services, requests)
        rows["coral"] |= {"attainment_corrected": float(attained.min()), "headroom": float(headroom.max())}
        plain = met(serve(rentals["coral"], services, requests, components.router("lmetric")), services, requests)
        assert requests.model is not None
        rows["coral"]["attainment_lmetric"] = float((plain / np.bincount(requests.model)).min())
    complete = [rows[name] for name in BASELINES if rows[name]["complete"]]
    rows["best baseline"] = {
        "usd_per_hour": min((row["usd_per_hour"] for row in complete), default=None),
        "goodput": max((rows[name]["goodput"] for name in BASELINES), default=None) if scarce else None,
        "scarce": scarce,
    }
    return rows


def _drawn(seed: int, draw: int) -> int:
    """The seed of one more market and demand of the same seed."""
    return int(stream(seed, "coral", "draw", draw).integers(1 << 31)) if draw else seed


def _planned(rental: Rental) -> dict[str, Any]:
    share = float(rental.served.sum() / rental.demand.sum())
    return {
        "usd_per_hour": rental.usd_per_hour if rental.complete else None, "served_share": share,
        "complete": rental.complete, "seconds": rental.seconds,
    }  # fmt: skip


def _simulated(
    rental: Rental, services: Sequence[Service], requests: Requests, wanted: Floats, seed: int
) -> dict[str, Any]:
    """Let in what the plan has capacity for, and count what met its targets."""
    let_in = admitted(requests, np.minimum(rental.capacity / wanted, 1.0), seed)
    good = met(serve(rental, services, let_in), services, let_in)
    assert let_in.model is not None
    counts = np.bincount(let_in.model, minlength=len(services))
    shares = good[counts > 0] / counts[counts > 0]
    return {
        "goodput": float(good.sum() / requests.seconds), "attainment": float(shares.min()) if len(shares) else None,
        "attainment_mean": float(good.sum() / max(counts.sum(), 1)),
    }  # fmt: skip


def against_joint(trace: str, models: int, configs: int, limit: float, seed: int, draw: int = 0) -> dict[str, Any]:
    """The two stages beside one program over every design there is, to the last digit; `limit`: its seconds."""
    seed = _drawn(seed, draw)
    random = stream(seed, "coral", "small")
    names = random.choice(sorted(TARGETS), size=models, replace=False).tolist()
    services, requests = workload(trace, 10.0 * models, 2000, seed, names)
    chosen = random.choice(CONFIGS[: len(NODES)] if configs <= len(NODES) else CONFIGS, size=configs, replace=False)
    offer = gpu_market.generate([str(name) for name in chosen], gpus=24.0, seed=seed).at(0.0)
    wanted = peak(requests, models)
    every = [enumerate_designs(service, offer.configs) for service in services]
    began = perf_counter()
    choices = [designs(service, offer.configs) for service in services]
    exact: dict[str, Any] = {"gap": 1e-9, "work": 10**6, "seconds": limit}
    two = solve(choices, offer.price, offer.available, wanted, scarce=True if seed % 2 else None, **exact)
    seconds = perf_counter() - began
    one = solve(every, offer.price, offer.available, wanted, scarce=True if seed % 2 else None, **exact)
    loss = (two.objective - one.objective) / max(abs(one.objective), 1e-12)
    return {
        "seconds": seconds, "joint_seconds": one.seconds, "joint_status": one.status,
        "columns": sum(map(len, choices)), "joint_columns": sum(map(len, every)),
        "loss": loss,
    }  # fmt: skip


def over_an_hour(trace: str, copies: int, step: float, served: bool, seed: int) -> dict[str, dict[str, Any]]:
    """Half of the models and nodes over the trace's hour: re-planned, or planned once. Plans know the past only.

    Every request of the trace comes `copies` times, within a minute.
    """
    names = tuple(TARGETS)[::2]
    services, requests = workload(trace, copies * read_or_hour(trace).rate, 0, seed, names, copies)
    offered = gpu_market.generate(CONFIGS[: len(NODES)], seconds=requests.seconds, gpus=16.0, seed=seed)
    times = np.arange(0.0, requests.seconds, step)
    assert requests.model is not None
    demand = np.zeros((len(times), len(names)))
    np.add.at(demand, (np.minimum(requests.arrival // step, len(times) - 1).astype(int), requests.model), 1 / step)
    known = np.vstack([demand[:1], demand[:-1]])
    choices, _, _ = first_stage(tuple(services), offered.configs)
    rows = {}
    once = {"period": np.inf, "change": np.inf}
    compared = {"coral": {}, "coral, planned once": once} | ({"independent": {}} if served else {})
    for name, options in compared.items():
        began = perf_counter()
        rule = rules.independent if name == "independent" else rules.joint
        leases = follow(rule, choices, offered, times, known, headroom=HEADROOM, gap=STOP, work=WORK, **options)
        seconds = perf_counter() - began
        books = account(leases, offered, times, demand)
        rows[name] = {"usd": books.usd, "served_share": books.served, "starts": books.starts, "seconds": seconds}
        if served:
            rows[name]["attainment_mean"] = rolled_out(Rollout(leases, services), services, requests)
    return rows


def study(lab: Lab) -> Tables:
    """Rules beside one another on markets ample and scarce; the two stages beside the joint program; an hour."""
    path = lab.trace_or_none("AzureLLMInferenceTrace_conv.csv")
    trace, demand = (str(path), "") if path else ("", GENERATED)
    models, configs, rate = lab.pick(quick=(4, 10, 80.0), full=(6, 20, 160.0))
    markets = [
        {
            "trace": trace,
            "models": models,
            "configs": configs,
            "supply": supply,
            "rate": rate,
            "count": count,
            "draw": draw,
        }
        for count in lab.pick(quick=(1500,), full=(8000,))
        for supply in lab.pick(quick=(24.0, 4.0), full=(32.0, 24.0, 12.0, 6.0, 4.0, 2.0))
        for draw in range(lab.pick(quick=4, full=2) if supply < 12.0 else 1)  # scarce markets differ much
    ]
    small = [
        {"trace": trace, "models": models, "configs": configs, "limit": limit, "draw": draw}
        for models, configs, limit in lab.pick(quick=((2, 3, 60.0),), full=((2, 4, 60.0), (3, 8, 300.0)))
        for draw in range(lab.pick(quick=3, full=2))
    ]
    # What the leases cost and carry is counted. Serving them too is `served=True`: it fails where all leases that
    # decode end while a prompt is on its way to them, so the study leaves it out.
    hour = [{"trace": trace, "copies": 12, "step": lab.pick(quick=300.0, full=60.0), "served": False}]
    return {
        f"market{demand}": lab.run(on_market, markets, per="policy").drop("trace"),
        f"joint{demand}": lab.run(against_joint, small).drop("trace").with_columns(policy=pl.lit("coral")),
        f"hour{demand}": lab.run(over_an_hour, hour, per="policy").drop("trace"),
    }


def plot(table: pl.DataFrame) -> alt.HConcatChart:
    """Rent where everything can be served, and goodput where it cannot, by rule and supply of GPUs."""
    import altair as alt

    chosen = _experiment(table, "market").filter(pl.col("policy") != "best baseline")
    order = ["coral", *BASELINES]
    # Rents compare only over markets in which every rule serves all demand: a plan that falls short is cheap.
    whole = pl.col("complete").fill_null(value=False).all().over("supply", "seed")
    chosen = chosen.filter(pl.col("scarce") | whole)
    panels = []
    for column, title in (("usd_per_hour", "rent, US dollars per hour"), ("goodput", "requests per second in time")):
        at = chosen.filter(pl.col("scarce") == (column == "goodput"))
        points = at.filter(pl.col(column).is_not_null()).group_by("policy", "supply").agg(pl.col(column).mean())
        base = alt.Chart(points.sort("supply", "policy")).encode(
            y=alt.Y("policy:N", sort=order, title=None),
            x=alt.X(f"{column}:Q", title=title, scale=alt.Scale(zero=True)),
            color=alt.Color("supply:O", title="GPUs of each configuration"),
        )
        panels.append(base.mark_point(size=80, filled=True).properties(width=330, height=170))
    models, configs = int(chosen["models"][0]), int(chosen["configs"][0])
    subtitle = "Mean over seeds; rent where every rule serves all demand"
    headline = alt.Title(f"Planning for {models} models on {configs} kinds of nodes", subtitle=subtitle)
    chart: alt.HConcatChart = alt.hconcat(*panels, title=headline)
    return chart


# ------------------------------------------------------------------------------------------ the claims


def _experiment(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """An experiment's rows whatever the demand: how long planning takes, and how well, hardly hangs on it."""
    return table.filter(pl.col("experiment").is_in([name, f"{name}{GENERATED}"]))


def largest(column: str, *, scarce: bool) -> measures.Measure:
    """The largest ratio between Coral and the best baseline over the supplies, each a mean over seeds and their draws.

    Which baseline is best may differ from seed to seed. A seed has no goodput to compare where its market is ample, and
    no cost where no baseline serves everything. A supply that lacks a seed is left out: the best of such supplies would
    be that of few seeds.
    """

    def measure(table: pl.DataFrame) -> Estimate:
        markets = measures.rows(table, {"experiment": "market"})
        chosen = measures.rows(markets, {"scarce": scarce})
        found: dict[str, measures.Measure] = {}
        for (supply,), at in chosen.group_by("supply", maintain_order=True):
            pair = (
                at.filter(pl.col("policy") == name).select("seed", "draw", pl.col(column).alias(name))
                for name in ("coral", "best baseline")
            )
            both = next(pair).join(next(pair), on=["seed", "draw"]).drop_nulls()
            both = both.group_by("seed", maintain_order=True).mean()
            if len(both) == markets["seed"].n_unique():
                ours, theirs = both["coral"].to_list(), both["best baseline"].to_list()
                pair_of = (ours, theirs) if scarce else (theirs, ours)
                found[f"{supply:g} GPUs of each configuration"] = partial(lambda two, _: intervals.ratio(*two), pair_of)
        if not found:
            raise NotMeasured("no supply at which every seed can be compared")
        return measures.best(found)(table)

    return measure


def planning_seconds(table: pl.DataFrame) -> Estimate:
    """Both stages of a plan on the markets, designs included."""
    rows = measures.rows(_experiment(table, "market"), {"policy": "coral"})
    return intervals.bootstrap((rows["seconds"] + rows["first_stage_seconds"]).to_list())


def lossless(table: pl.DataFrame) -> Estimate:
    """The share of markets in which two stages are as good as one program over every design, to 1e-6."""
    rows = measures.rows(_experiment(table, "joint"), {"joint_status": "optimal"})
    return measures.share("same")(rows.with_columns(same=pl.col("loss") <= 1e-6))


def joint_longer(table: pl.DataFrame) -> Estimate:
    """Seconds of the one program over every design, times those of both stages, on the same small markets."""
    rows = measures.rows(_experiment(table, "joint"), {})
    return intervals.ratio(rows["joint_seconds"], rows["seconds"])


claims = [
    Claim("cost", largest("usd_per_hour", scarce=False)),
    Claim("goodput", largest("goodput", scarce=True)),
    Claim("seconds", planning_seconds, evidence=Evidence.REAL),
    Claim("joint", joint_longer, evidence=Evidence.REAL),
    Claim("optimum", lossless, evidence=Evidence.REAL),
]
