"""`assay compare serving`: routers side by side on the user's own trace and fleet."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.record.intervals import ratio
from assay.record.wording import listed
from assay.serving import fleet as fleets
from assay.serving.engine import components, layout_report, step_sources
from assay.serving.engine.layout_search import Search
from assay.serving.engine.lead import Lead, lead
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.simulator import simulate, warm
from assay.serving.engine.state import ADMISSIONS
from assay.serving.interface import SLO
from assay.sim.layouts import read_layout
from assay.sim.llm_cost import StepCost
from assay.sim.step_times import COSTS, MEASURED
from assay.workloads.closed_loop import closed
from assay.workloads.requests import Requests

# The six columns that matter: who, the measure that decides, what users feel, and why.
SHOWN = ["policy", "ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean", "cached_ratio"]
SHOWN_WITH_TARGETS = ["policy", "goodput", "attainment", "ttft_p99", "tpot_p99", "cached_ratio"]
SHOWN_AT_CAPACITY = ["policy", "capacity", "attainment", "ttft_p99", "tpot_p99", "cached_ratio"]
GENERATED = 5000  # requests
NO_COST = StepCost(np.zeros(1))  # where only the model counts
DEFAULT = "lmetric,vllm-v1,round-robin,llm-d,dynamo,sglang-cache-aware"


@click.command(
    epilog="Example:  assay compare serving --trace chats.jsonl --fleet 4xh200:qwen3-32b --slo ttft=1,tpot=0.05"
)
@click.option(
    "--trace", default="agents", show_default=True,
    help="A file, the name of a public trace (assay traces lists them), or chat or agents: generated.",
)  # fmt: skip
@click.option(
    "--fleet",
    "fleet_text",
    default="16xh200:qwen3-32b",
    show_default=True,
    help="COUNTxGPU:MODEL[:tpN], several joined by +, or a TOML file.",
)
@click.option(
    "--cost", type=click.Choice(list(COSTS)), default=MEASURED, show_default=True,
    help="Step times: measured where somebody has measured that model on that GPU, else, or always, from data sheets.",
)  # fmt: skip
@click.option("--policies", default=DEFAULT, show_default=True, help="Routers by key, or package.module:Class.")
@click.option("--policy", "more", multiple=True, help="One more router: package.module:Class or file.py:Class.")
@click.option("--order", help="Who is admitted first: fcfs, sjf, priority, …, or package.module:Class.")
@click.option("--cache", type=click.Choice(["prefix", "off"]), default="prefix", show_default=True)
@click.option(
    "--rate", default="x1", show_default=True, help="x2 doubles the trace's rate; 12 means 12 requests a second."
)
@click.option(
    "--loop", type=click.Choice(["closed", "inferred", "open"]), default="closed", show_default=True,
    help="closed: a turn of a session is sent when the one before has ended and its think time is over; inferred: "
    "also where the trace names no sessions, by prompts that continue others; open: at the trace's arrivals.",
)  # fmt: skip
@click.option(
    "--admission", type=click.Choice(list(ADMISSIONS)),
    help="What must fit of a prompt before a vLLM batch takes it: all of it, or the next chunk. "
    "Without it: what the fleet says, else prompt.",
)  # fmt: skip
@click.option(
    "--age", type=click.FloatRange(0.0), default=0.0, show_default=True,
    help="Seconds between two readings of the instances' signals: routers see them up to so old.",
)  # fmt: skip
@click.option("--slo", help="Targets in seconds: ttft=1,tpot=0.05,e2e=30.")
@click.option(
    "--find", type=click.Choice(["capacity", "layout"]),
    help="capacity: bisect the highest rate at which 95 % meet --slo; layout: the cheapest cut of the model (tp, pp, "
    "ep, prefill and decode apart) that does at the trace's rate, with the first policy.",
)  # fmt: skip
@click.option("--gpus", type=click.IntRange(1), help="With --find layout: at most so many GPUs; else the fleet's.")
@click.option("--gpu", help="With --find layout: the kind of GPU; else the fleet's.")
@click.option("--model", help="With --find layout: the model, such as qwen3-32b:fp8; else the fleet's.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first so many requests.")
@click.option("--dejitter", is_flag=True, help="Spread arrivals that a trace rounds to the same moment.")
@click.option("--skip-bad", is_flag=True, help="Refuse and count bad rows instead of stopping at the first.")
@click.option("--block", type=click.IntRange(1, 4096), default=16, show_default=True, help="Tokens of a KV block.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write the picture: .svg, .png or .html.")
@click.option("--timeline", type=click.Path(path_type=Path), help="Write the first policy's run for Perfetto.")
def command(
    trace: str, fleet_text: str, cost: str, policies: str, more: tuple[str, ...], order: str | None, cache: str,
    rate: str, loop: str, admission: str | None, age: float, slo: str | None, find: str | None, gpus: int | None,
    gpu: str | None, model: str | None, limit: int | None, dejitter: bool, skip_bad: bool, block: int,
    plot: Path | None, timeline: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """Routers on your own trace and fleet: who serves it best, and why."""
    names = [name.strip() for name in policies.split(",") if name.strip()] + list(more)
    target = read_slo(slo) if slo else None
    if find and target is None:
        raise BadInput(f"--find {find} needs --slo, for example --slo ttft=1,tpot=0.05")
    if find != "layout" and (gpus or gpu or model):
        raise BadInput("--gpus, --gpu and --model say where to look for a layout: add --find layout, or name a --fleet")
    spec = fleets.parse(fleet_text, block=block, cost=cost)
    if admission is not None:
        spec = replace(spec, instances=tuple(replace(one, admission=admission) for one in spec.instances))
    requests = at_rate(in_loop(_read(trace, dejitter=dejitter, limit=limit, skip_bad=skip_bad), loop), rate)
    if find == "layout":
        if plot or timeline:
            raise BadInput("--plot and --timeline draw runs of a --fleet: leave them out, or give the layout found")
        assert target is not None
        layout, most = layout_report.question(spec, gpus, gpu, model)
        return best_layout(
            requests, layout, most, names, target, order=order, prefix_cache=cache == "prefix", block=block, cost=cost,
            loop="open" if loop == "open" else "closed", age=age, admission=admission,
            progress=click.get_current_context().obj,
        )  # fmt: skip
    requests = served_here(requests, spec)
    made = {_label(name, names): name for name in names}
    answer, outcomes = compare(
        requests, spec, made, order=order, prefix_cache=cache == "prefix", slo=target, find=find is not None,
        loop="open" if loop == "open" else "closed", age=age, progress=click.get_current_context().obj,
    )  # fmt: skip
    if plot is not None:
        from assay.record import charts
        from assay.serving.engine.plots import comparison

        charts.write(comparison(outcomes), plot)
    if timeline is not None:
        from assay.serving.engine import timeline as perfetto

        perfetto.write(next(iter(outcomes.values())), timeline)
    return answer


def beside(kind: str, key: str) -> dict[str, Any]:
    """The defaults with which `assay compare KEY` compares a paper's component.

    >>> beside("router", "balanceroute")["policies"]
    'balanceroute,lmetric,vllm-v1,round-robin,llm-d,dynamo,sglang-cache-aware'
    """
    return {"order": key} if kind == "order" else {"policies": ",".join(listed(f"{key},{DEFAULT}"))}


def _read(trace: str, limit: int | None, **options: Any) -> Requests:
    """A trace from a file, or a generated one."""
    if trace in ("chat", "agents") and not Path(trace).exists():
        return generated(trace, limit or GENERATED)
    from assay.workloads.request_files import read

    return read(trace, limit=limit, **options)


def generated(kind: str, count: int = GENERATED, seed: int = 0) -> Requests:
    """Requests of people who chat, or of people and agents, 30 a second.

    >>> len(generated("chat", 100))
    100
    """
    from assay.workloads.chat import Agents, chat

    return chat(count, rate=30.0, seed=seed, agents=Agents() if kind == "agents" else None)


def read_slo(text: str) -> SLO:
    """Targets from `ttft=1,tpot=0.05`.

    >>> read_slo("ttft=1,tpot=0.05")
    SLO(ttft=1.0, tpot=0.05, e2e=inf)
    """
    targets = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            targets[name] = float(value)
        except ValueError:
            targets[name] = math.nan
        if name not in SLO._fields or not targets[name] > 0:
            raise BadInput(f"--slo '{part.strip()}': write seconds, for example ttft=1,tpot=0.05 (also e2e)")
    return SLO(**targets)


def at_rate(requests: Requests, text: str) -> Requests:
    """A trace at `x2` times its rate, or at so many requests a second."""
    found = re.fullmatch(r"(x?)(\d+(?:\.\d*)?(?:e-?\d+)?)", text.strip())
    factor = float(found[2]) if found else 0.0
    if not factor > 0:
        raise BadInput(f"--rate '{text}': write x2 for twice the trace's rate, or 12 for 12 requests a second")
    if found and not found[1]:
        if not requests.seconds:
            raise BadInput("--rate in requests a second needs a trace that lasts some time")
        factor /= requests.rate
    return requests if factor == 1.0 else requests.faster(factor)


def in_loop(requests: Requests, loop: str) -> Requests:
    """The requests with the turns that a trace does not name, where they are to be found in its prompts."""
    if loop != "inferred" or requests.after is not None:
        return requests
    if requests.session is None and requests.prefixes is None:
        raise BadInput("--loop inferred needs prompts that share beginnings (hash_ids, text); this trace has none")
    return closed(requests)


def _loop_facts(outcome: Outcome) -> str:
    """Which requests waited for which, in words."""
    requests = outcome.requests
    if requests.after is not None and requests.think is not None:
        later = requests.after >= 0
        if later.any():
            think = float(np.median(requests.think[later]))
            return f"closed: {int(later.sum()):,} turns are sent {think:.3g} s (median) after the one before has ended"
        return "closed: no session has a second turn"
    early = outcome.early
    if early:
        return f"open: every request at its arrival, {early:.0%} of the turns before the one they continue had ended"
    return "open: every request at its arrival"


def served_here(requests: Requests, spec: fleets.FleetSpec) -> Requests:
    """The requests, asked of this fleet's models: names of others say nothing here, and a note says so.

    A request for a model that the fleet has still goes there only, where the fleet has several.
    """
    if requests.model is None:
        return requests
    known, asked = {instance.model for instance in spec.instances}, set(requests.models)
    if asked <= known:
        return requests
    if asked & known:
        strangers = ", ".join(sorted(asked - known)[:3])
        raise BadInput(f"the trace asks for models that the fleet has not ({strangers}); name them in --fleet, too")
    names = ", ".join(requests.models[:3])
    note = f"asked for {names}: taken as requests for {', '.join(sorted(known))}"
    source = replace(requests.source, notes=(*requests.source.notes, note))
    return replace(requests, model=None, models=(), source=source)


def _label(name: str, names: Sequence[str]) -> str:
    short = name.rpartition(":")[2] if ":" in name else name
    return short if [other.rpartition(":")[2] for other in names].count(short) == 1 else name


def compare(
    requests: Requests,
    spec: fleets.FleetSpec,
    policies: Mapping[str, str],
    *,
    order: str | None = None,
    prefix_cache: bool = True,
    slo: SLO | None = None,
    find: bool = False,
    loop: str = "closed",
    age: float = 0.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, Any], dict[str, Outcome]]:
    """The policies on one trace and one fleet: facts, a table and who wins; and the runs themselves."""
    if not policies:
        raise BadInput("no policy given; for example --policies lmetric,vllm-v1")
    for name in policies.values():
        components.router(name)  # a wrong name is refused before anything runs
    warm()
    outcomes, table = {}, []
    for done, (label, name) in enumerate(policies.items()):
        progress(done, len(policies))
        options: dict[str, Any] = {"prefix_cache": prefix_cache, "loop": loop, "age": age}
        if order is not None:
            options["order"] = components.order(order)
        row: dict[str, Any] = {"policy": label}
        if find:
            from assay.serving.engine import capacity

            assert slo is not None
            found = capacity.find(requests, spec, lambda name=name: components.router(name), slo, **options)  # type: ignore[misc]
            row["capacity"], outcome = found.rate, found.outcome
        else:
            outcome = simulate(requests, spec, components.router(name), **options)
        if not outcome.served.any():
            raise BadInput(_nothing_fits(requests, spec))
        outcomes[label] = outcome
        table.append(row | outcome.summary(slo))
    _add_leads(table, outcomes, slo, find)
    return {
        "trace": _trace_facts(requests, next(iter(outcomes.values()))),
        "fleet": _fleet_facts(spec, age),
        "table": table,
        "why": _why(table, slo, find),
        "trust": step_sources.told(spec, outcomes.values()),
        "shown": SHOWN_AT_CAPACITY if find else SHOWN_WITH_TARGETS if slo else SHOWN,
    }, outcomes


def best_layout(
    requests: Requests,
    layout: str,
    gpus: int,
    policies: Sequence[str],
    slo: SLO,
    *,
    order: str | None = None,
    block: int = 16,
    cost: str = MEASURED,
    admission: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> dict[str, Any]:
    """The cheapest layout of at most so many GPUs that serves the trace within its targets, by the first policy."""
    if not policies:
        raise BadInput("no policy given; for example --policies lmetric")
    requests = served_here(
        requests, fleets.FleetSpec((fleets.Instance(NO_COST, model=read_layout(layout).model.name),))
    )
    components.router(policies[0])
    warm()
    search = Search(
        requests, slo, gpus, layout, lambda: components.router(policies[0]), block=block, cost=cost,
        admission=admission, progress=progress,
        options=lambda: options if order is None else options | {"order": components.order(order)},
    )  # fmt: skip
    found = search.search()
    answer = layout_report.answer(search, found)
    shown = found.meets[0] if found.meets else found.nearest
    facts = {"trace": _trace_facts(requests, shown.outcome)} if shown else {}
    return facts | answer | {"search": {"policy": policies[0]} | answer["search"]}


def _add_leads(table: list[dict[str, Any]], outcomes: Mapping[str, Outcome], slo: SLO | None, find: bool) -> None:
    """To each row by which share the winner leads it, and the 95 % interval; a capacity, found once, has none."""
    best = ranked(table, slo, find)[0]["policy"]
    for row in table:
        run, other = outcomes[best], outcomes[row["policy"]]
        found = None
        if not find and row["policy"] != best:
            found = lead(run, other, run.ttft, other.ttft) if slo is None else _fewer_misses(run, other, slo)
        ends = (found.share, found.low, found.high) if found else (None, None, None)
        row |= dict(zip(("led_by", "led_by_low", "led_by_high"), ends, strict=True))


def _fewer_misses(best: Outcome, other: Outcome, slo: SLO) -> Lead:
    """The share by which more requests meet the targets: 1 - theirs / ours."""
    return lead(other, best, other.met(slo).astype(float), best.met(slo).astype(float))


def ranked(table: Sequence[Mapping[str, Any]], slo: SLO | None = None, find: bool = False) -> list[Mapping[str, Any]]:
    """The rows, best first: by capacity, by goodput where there are targets, else by mean time to first token."""
    measure = _measure(slo, find)
    return sorted(table, key=lambda row: row[measure], reverse=measure != "ttft_mean")


def _measure(slo: SLO | None, find: bool) -> str:
    return "capacity" if find else "goodput" if slo else "ttft_mean"


def over_traces(
    traces: Sequence[Requests],
    spec: fleets.FleetSpec,
    policies: Sequence[str],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[dict[str, Any]], dict[str, Outcome]]:
    """The policies on several traces of a kind, best first, with the winner's lead and its interval; the first runs.

    Traces differ in how much work they bring, and so in how long everybody waits: an interval over traces knows of
    that, one over the sessions of a single run does not.
    """
    warm()
    seconds: dict[str, list[float]] = {name: [] for name in policies}
    first: dict[str, Outcome] = {}
    for done, (trace, name) in enumerate((trace, name) for trace in traces for name in policies):
        progress(done, len(traces) * len(policies))
        outcome = simulate(trace, spec, components.router(name))
        seconds[name].append(float(outcome.ttft.mean()))
        first.setdefault(name, outcome)
    order = sorted(policies, key=lambda name: sum(seconds[name]))
    table = []
    for name in order:
        found = None if name == order[0] else ratio(seconds[order[0]], seconds[name])
        ends = (1 - found.value, 1 - found.high, 1 - found.low) if found else (None, None, None)
        row = {"policy": name, "ttft_mean": sum(seconds[name]) / len(traces)}
        table.append(row | dict(zip(("led_by", "led_by_low", "led_by_high"), ends, strict=True)))
    return table, first


def _nothing_fits(requests: Requests, spec: fleets.FleetSpec) -> str:
    room = max(instance.room for instance in spec.instances)
    least = int((requests.prompt.astype(np.int64) + requests.output).min())
    need = f"the smallest needs {least:,} tokens of KV, the largest instance holds {room:,}"
    return f"no request fits: {need}; use more GPUs (tp)"


def _trace_facts(requests: Requests, outcome: Outcome) -> dict[str, Any]:
    source = requests.source
    facts = {
        "name": source.name, "format": source.format, "read": source.read, "used": int(outcome.served.sum()),
        "refused": source.read - int(outcome.served.sum()), "seconds": requests.seconds, "rate": requests.rate,
        "loop": _loop_facts(outcome),
        "prompt_mean": float(requests.prompt.mean()), "output_mean": float(requests.output.mean()),
        "mapping": ", ".join(f"{ours} = {theirs}" for ours, theirs in source.mapping.items()),
    }  # fmt: skip
    notes = list(source.notes)
    misfits = np.flatnonzero(~outcome.served)
    if len(misfits):
        r = int(misfits[0])
        notes.append(
            f"{len(misfits)} requests fit no instance; the first is request {r} "
            f"({int(requests.prompt[r]):,} prompt and {int(requests.output[r]):,} output tokens)"
        )
    return facts | {"notes": "; ".join(notes)}


def _fleet_facts(spec: fleets.FleetSpec, age: float) -> dict[str, Any]:
    rooms = {instance.room for instance in spec.instances}
    price = sum(instance.usd_per_hour for instance in spec.instances)
    notes = dict.fromkeys(note for instance in spec.instances for note in instance.cost.notes)
    return {
        "name": spec.name, "instances": len(spec), "gpus": spec.gpus, "kv_tokens": max(rooms), "usd_per_hour": price,
        "step_times": step_sources.used(spec), "block": spec.block,
        "admission": ", ".join(dict.fromkeys(one.admission for one in spec.instances)),
        "signals": f"read every {age:g} s" if age else "as they are", "notes": "; ".join(notes),
    }  # fmt: skip


def _why(table: Sequence[Mapping[str, Any]], slo: SLO | None, find: bool) -> str:
    """Who wins, by how much and how sure that is, and why, from the numbers."""
    measure = _measure(slo, find)
    best, *others = ranked(table, slo, find)
    unit = "s mean time to first token" if measure == "ttft_mean" else "requests/s within the targets"
    if not others:
        return f"{best['policy']} has {best[measure]:.3g} {unit}. There is nobody to compare it with."
    second, last = others[0], others[-1]
    if tied := [row["policy"] for row in others if row["led_by_low"] is not None and not row["led_by_low"] > 0]:
        names = ", ".join([best["policy"], *tied[:-1]]) + f" and {tied[-1]}"
        first = (
            f"{names} tie at {best[measure]:.3g} {unit}: {best['policy']} is {_lead_text(second)}, which may be nothing"
        )
    else:
        first = f"{best['policy']} wins with {best[measure]:.3g} {unit}, {_lead_text(second)}"
    said = "" if last is second else f"; {last['policy']} is last with {last[measure]:.3g}"
    return f"{first}{said}. {_because(best, last)}"


def _lead_text(row: Mapping[str, Any]) -> str:
    """By how much the winner leads a row, with the interval."""
    if row["led_by"] is None:
        return f"before {row['policy']}"
    ends = f"{100 * row['led_by_low']:.0f} … {100 * row['led_by_high']:.0f} %".replace("-", "−")
    return f"{row['led_by']:.0%} ahead of {row['policy']} (95 % interval {ends}, sessions of this run resampled)"


def _because(best: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What sets two runs apart most: the prompt tokens computed, the waiting, the decoding, or preemptions."""
    name = other["policy"]
    work, work_other = 1 - best["cached_ratio"], 1 - other["cached_ratio"]
    wait, wait_other = best["queueing_mean"], other["queueing_mean"]
    pace, pace_other = best["tpot_mean"], other["tpot_mean"]
    causes = [
        (
            work_other / max(work, 1e-9),
            f"computes {work:.0%} of its prompt tokens where {name} computes {work_other:.0%}",
        ),
        ((wait_other + 1e-3) / (wait + 1e-3), f"lets requests wait {wait:.2g} s for admission, not {wait_other:.2g} s"),
        (pace_other / max(pace, 1e-12), f"keeps tokens {pace:.2g} s apart, not {pace_other:.2g} s"),
    ]
    causes.sort(reverse=True)
    strong = [text for factor, text in causes if factor > 1.05][:2]
    if not strong:
        return "They compute, wait and decode alike: at this load the choice hardly matters."
    return f"It {' and '.join(strong)}."
