"""`assay compare serving`: routers side by side on the user's own trace and fleet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.record.intervals import ratio
from assay.record.pool import Crew, Task
from assay.record.wording import listed
from assay.serving import fleet as fleets
from assay.serving.engine import bill, columns, components, contest, layout_report, plots, step_sources
from assay.serving.engine.layout_search import Search
from assay.serving.engine.luck import Again
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.own_trace import at_rate, in_loop, read_trace, served_here
from assay.serving.engine.promise import Promise
from assay.serving.engine.simulator import simulate, warm
from assay.serving.engine.state import ADMISSIONS
from assay.serving.engine.targets import Targets, check_tiers, read_targets, tier_rows
from assay.sim.step_times import COSTS, MEASURED
from assay.workloads.requests import Requests
from assay.workloads.time_option import TIME_UNIT, in_doubt
from assay.workloads.time_units import WORDS

DEFAULT = "lmetric,vllm-v1,round-robin,llm-d,dynamo,sglang-cache-aware"


@click.command(
    epilog="Example:  assay compare serving --trace examples/chats.jsonl --fleet 4xh200:qwen3-32b "
    "--slo ttft=1,tpot=0.05"
)
@click.option(
    "--trace", "traces", multiple=True, default=("agents",), show_default=True,
    help="A file, the name of a public trace (assay traces lists them), or chat or agents: generated. "
    "Several give a table each, and who wins over all.",
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
@click.option(
    "--slo", multiple=True,
    help="Targets in seconds: ttft=1,tpot=0.05,e2e=30; for a tier of the trace alone batch:e2e=60. May be repeated.",
)  # fmt: skip
@click.option("--price", help="Dollars an hour for a GPU: 2.5, or by kind h200=3.5,h100=2. Without it: list prices.")
@click.option(
    "--find", type=click.Choice(["capacity", "layout"]),
    help="capacity: bisect the highest rate at which 95 % meet --slo; layout: the cheapest cut of the model (tp, pp, "
    "ep, prefill and decode apart) that does at the trace's rate, with the first policy.",
)  # fmt: skip
@click.option("--gpus", type=click.IntRange(1), help="With --find layout: at most so many GPUs; else the fleet's.")
@click.option("--gpu", help="With --find layout: the kind of GPU; else the fleet's.")
@click.option("--model", help="With --find layout: the model, such as qwen3-32b:fp8; else the fleet's.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first so many requests.")
@TIME_UNIT
@click.option("--dejitter", is_flag=True, help="Spread arrivals that a trace rounds to the same moment.")
@click.option("--skip-bad", is_flag=True, help="Refuse and count bad rows instead of stopping at the first.")
@click.option("--block", type=click.IntRange(1, 4096), default=16, show_default=True, help="Tokens of a KV block.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write the picture: .svg, .png or .html.")
@click.option("--timeline", type=click.Path(path_type=Path), help="Write the first policy's run for Perfetto.")
def command(
    traces: tuple[str, ...], fleet_text: str, cost: str, policies: str, more: tuple[str, ...], order: str | None,
    cache: str, rate: str, loop: str, admission: str | None, age: float, slo: tuple[str, ...], price: str | None,
    find: str | None, gpus: int | None, gpu: str | None, model: str | None, limit: int | None, time_unit: str | None,
    dejitter: bool, skip_bad: bool, block: int,
    plot: Path | None, timeline: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """Routers on your own trace and fleet: who serves it best, and why."""
    names = [name.strip() for name in policies.split(",") if name.strip()] + list(more)
    targets = read_targets(slo)
    if find and targets is None:
        raise BadInput(f"--find {find} needs --slo, for example --slo ttft=1,tpot=0.05")
    if find != "layout" and (gpus or gpu or model):
        raise BadInput("--gpus, --gpu and --model say where to look for a layout: add --find layout, or name a --fleet")
    if find == "layout" and (plot or timeline or len(traces) > 1):
        raise BadInput("--find layout takes one --trace and draws nothing: give the layout found as --fleet for that")
    if len(traces) > 1 and (plot or timeline):
        raise BadInput(f"--plot and --timeline draw one trace, and there are {len(traces)}; give them with one --trace")
    spec = fleets.parse(fleet_text, block=block, cost=cost)
    if admission is not None:
        spec = replace(spec, instances=tuple(replace(one, admission=admission) for one in spec.instances))
    if price is not None:
        spec = bill.priced(spec, price)
    asked: list[Requests] = []
    others: dict[tuple[int, str], Requests] = {}  # by trace: what else its times may mean
    for trace in traces:
        read = partial(read_trace, trace, limit, dejitter=dejitter, skip_bad=skip_bad)
        requests = in_loop(read(time_unit=time_unit), loop)
        check_tiers(targets, requests)
        asked.append(at_rate(requests, rate))
        for unit in requests.source.units:
            others[len(asked) - 1, unit] = at_rate(in_loop(read(time_unit=unit), loop), rate)
    if find == "layout":
        assert targets is not None
        if others:
            raise BadInput(in_doubt(asked[0], "no layout is looked for"))
        layout, most = layout_report.question(spec, gpus, gpu, model)
        search = Search(
            replace(asked[0], steady=None), targets, most, layout, names[0] if names else "",
            admission=admission, price=price, block=block,
            cost=cost, order=order, progress=click.get_current_context().obj,
            options={"prefix_cache": cache == "prefix", "loop": "open" if loop == "open" else "closed", "age": age},
        )  # fmt: skip
        return best_layout(search)
    asked = [served_here(requests, spec) for requests in asked]
    made = {_label(name, names): name for name in names}
    options: dict[str, Any] = {
        "order": order, "prefix_cache": cache == "prefix", "slo": targets, "find": find is not None,
        "loop": "open" if loop == "open" else "closed", "age": age, "price": price,
        "crew": click.get_current_context().meta.get("assay.crew"),
    }  # fmt: skip
    answer, outcomes = compare_all(asked, spec, made, progress=click.get_current_context().obj, **options)
    for (number, unit), requests in others.items():
        apart = who_wins_apart(answer["traces"][number] if len(asked) > 1 else answer, requests, spec, made, options)
        if apart:
            raise BadInput(in_doubt(asked[number], f"read as {WORDS[unit]} {apart}"))
    answer["pictures"] = {"latency": partial(plots.curves, outcomes), "load over time": partial(plots.heat, outcomes)}
    if plot is not None:
        from assay.record import charts

        charts.write(plots.comparison(outcomes), plot)
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


def who_wins_apart(
    answer: Mapping[str, Any], requests: Requests, spec: fleets.FleetSpec, made: Mapping[str, str],
    options: Mapping[str, Any],
) -> str:  # fmt: skip
    """Who wins, in words, where a trace read in another unit has another winner; nothing where it has ours."""
    other, _ = compare(served_here(requests, spec), spec, made, **options)
    ours, theirs = (contest.leaders(each["table"]) for each in (answer, other))
    if ours[0] in theirs:  # who goes by our answer has the best, or nobody can tell, in either unit
        return ""
    return f"{theirs[0]} wins, not {ours[0]}"


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


def _label(name: str, names: Sequence[str]) -> str:
    short = name.rpartition(":")[2] if ":" in name else name
    return short if [other.rpartition(":")[2] for other in names].count(short) == 1 else name


def compare_all(
    traces: Sequence[Requests],
    spec: fleets.FleetSpec,
    policies: Mapping[str, str],
    *,
    slo: Targets | None = None,
    find: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> tuple[dict[str, Any], dict[str, Outcome]]:
    """The policies on each trace and, where there are several, over all of them; and the runs of the first."""
    parts, runs, again = [], [], []
    played = {"prefix_cache": options.get("prefix_cache", True), "loop": options.get("loop", "closed"),
              "age": options.get("age", 0.0)}  # fmt: skip
    for number, requests in enumerate(traces):

        def of_all(done: int, total: int, before: int = number) -> None:
            progress(before * total + done, len(traces) * total)

        more = None if find else runs_again(requests, spec, policies, options.get("order"), played)
        answer, outcomes = compare(requests, spec, policies, slo=slo, find=find, progress=of_all, again=more, **options)
        again += [] if more is None else [more]
        parts.append(answer)
        runs.append(outcomes)
    if len(parts) == 1:
        return parts[0], runs[0]
    tables = [part["table"] for part in parts]
    names = [requests.source.name for requests in traces]
    table = contest.over_all(tables, runs, slo, find, again)
    own = {name: facts for name, facts in parts[0].items() if name in ("fleet", "costs", "policies")}
    each = [{name: told for name, told in part.items() if name not in (*own, "units", "trust")} for part in parts]
    return own | {
        "traces": each, "table": table, "units": columns.UNITS,
        "why": contest.why_over_all(table, tables, names, slo, find), "trust": parts[0]["trust"],
    }, runs[0]  # fmt: skip


def compare(
    requests: Requests,
    spec: fleets.FleetSpec,
    policies: Mapping[str, str],
    *,
    order: str | None = None,
    prefix_cache: bool = True,
    slo: Targets | None = None,
    find: bool = False,
    loop: str = "closed",
    age: float = 0.0,
    price: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    crew: Crew | None = None,
    again: Again | None = None,
) -> tuple[dict[str, Any], dict[str, Outcome]]:
    """The policies on one trace and one fleet: facts, a table and who wins; and the runs themselves.

    A `crew` runs the policies side by side; what comes out is the same.
    """
    if not policies:
        raise BadInput("no policy given; for example --policies lmetric,vllm-v1")
    routers = {label: components.router(name) for label, name in policies.items()}  # wrong names: before anything runs
    warm()
    options: dict[str, Any] = {"prefix_cache": prefix_cache, "loop": loop, "age": age}
    promise = Promise.of(requests, spec, slo, prefix_cache) if find and slo is not None else None
    outcomes: dict[str, Outcome] = {}
    table: list[dict[str, Any]] = []
    ready = {} if crew is None or promise is not None else side_by_side(crew, requests, spec, policies, order, options)
    for done, (label, name) in enumerate(policies.items()):
        progress(done, len(policies))
        if order is not None:
            options["order"] = components.order(order)
        row: dict[str, Any] = {"policy": label}
        if promise is not None:
            start = max((known["capacity"] for known in table), default=0.0) or None
            found, outcome = promise.find(partial(components.router, name), options, start)
            row |= found
        else:
            outcome = ready.get(label) or simulate(requests, spec, routers[label], **options)
        if not outcome.served.any():
            raise BadInput(_nothing_fits(requests, spec))
        outcomes[label] = outcome
        table.append(row | outcome.summary(slo) | _spent(outcome, row))
    rivals = outcomes if promise is None else promise.rivals(table, policies, options, outcomes)
    again = again or runs_again(next(iter(rivals.values())).requests, spec, policies, order, options)
    contest.add_leads(table, rivals, slo, find, again)
    answer: dict[str, Any] = {
        "trace": _trace_facts(requests, next(iter(outcomes.values()))), "fleet": _fleet_facts(spec, age),
        "costs": bill.reckoning(spec, price), "policies": _policy_facts(routers, spec),
        "simulation": _simulation_facts(table), "table": table,
        "why": contest.why(table, slo, find, rivals if find else None), "units": columns.UNITS,
        "trust": step_sources.told(spec, outcomes.values()), "shown": columns.shown(slo, find), "apart": columns.APART,
    }  # fmt: skip
    if slo is not None and requests.tier is not None:
        answer["tiers"] = [row for label, run in outcomes.items() for row in tier_rows(label, run, slo)]
    if promise is not None:
        best = contest.ranked(table, slo, find)[0]
        first = partial(components.router, policies[best["policy"]])
        off = promise.resolution(first, options, best["capacity"]) if best["capacity"] else math.inf
        answer |= {"capacity": promise.facts(outcomes.values(), off), "never": promise.rows()}
        answer["why"] = f"{promise.sentence()}{answer['why']}{promise.exactness(off)}"
    else:
        answer["why"] += contest.load_sentence(table, outcomes)
    return answer, outcomes


def _spent(outcome: Outcome, row: Mapping[str, Any]) -> dict[str, float | None]:
    """What a million tokens cost; a run that keeps no promise is no load to reckon with."""
    spent = bill.per_million(outcome)
    return dict.fromkeys(spent) if row.get("capacity") == 0.0 else spent


def side_by_side(
    crew: Crew,
    requests: Requests,
    spec: fleets.FleetSpec,
    policies: Mapping[str, str],
    order: str | None,
    options: Mapping[str, Any],
) -> dict[str, Outcome]:
    """The runs of policies in processes of their own; one that failed there is left out, and fails again here."""
    labels = list(policies)
    given = {"requests": requests, "spec": spec, "order": order, "options": dict(options)}
    tasks = [Task("assay.serving.compare:one_run", given | {"name": policies[label]}) for label in labels]
    return {labels[at]: found for at, found in crew.run(tasks) if isinstance(found, Outcome)}


def one_run(
    requests: Requests, spec: fleets.FleetSpec, name: str, order: str | None, options: dict[str, Any],
    seed: int | None = None,
) -> Outcome:  # fmt: skip
    """One policy's run, by names that another process understands."""
    more = {} if order is None else {"order": components.order(order)}
    return simulate(requests, spec, components.router(name, seed), **options, **more)


def runs_again(
    requests: Requests, spec: fleets.FleetSpec, policies: Mapping[str, str], order: str | None,
    options: Mapping[str, Any],
) -> Again:  # fmt: skip
    """The policies' further laps over a trace, for what luck did in the first."""
    given = {name: value for name, value in options.items() if name != "order"} | {"record": False}

    def run(later: Requests, label: str, seed: int) -> Outcome:
        return one_run(later, spec, policies[label], order, given, seed)

    return Again(requests, run)


def best_layout(search: Search) -> dict[str, Any]:
    """The cheapest layout that serves a trace within its targets: facts, a table and why."""
    warm()
    found = search.search()
    shown = found.meets[0] if found.meets else found.nearest
    facts = {"trace": _trace_facts(search.requests, shown.outcome)} if shown else {}
    return facts | layout_report.answer(search, found)


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
    source, played = requests.source, outcome.requests
    misfits = np.flatnonzero(~outcome.served) if played.origin is None else np.unique(played.origin[~outcome.served])
    refused = source.read - len(requests) + len(misfits) if requests.origin is None else source.refused + len(misfits)
    facts = {
        "name": source.name, **({"times": source.times} if source.times else {}), "format": source.format,
        "read": source.read, "used": source.read - refused,
        "refused": refused, "seconds": requests.seconds, "rate": requests.rate,
        "loop": _loop_facts(outcome),
        "prompt_mean": float(requests.prompt.mean()), "output_mean": float(requests.output.mean()),
        "mapping": ", ".join(f"{ours} = {theirs}" for ours, theirs in source.mapping.items()),
    }  # fmt: skip
    notes = list(source.notes)
    if not outcome.served.all():
        r = int(np.flatnonzero(~outcome.served)[0])
        name = r if played.origin is None else int(misfits[0])
        notes.append(
            f"{len(misfits)} requests fit no instance; the first is request {name} "
            f"({int(played.prompt[r]):,} prompt and {int(played.output[r]):,} output tokens)"
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


def _simulation_facts(table: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How long the simulator itself ran: no latency of anybody."""
    each = ", ".join(f"{row['policy']} {row['sim_seconds']:.2g}" for row in table)
    return {"sim_seconds": sum(row["sim_seconds"] for row in table), "each": each if len(table) > 1 else ""}


def _policy_facts(routers: Mapping[str, Any], spec: fleets.FleetSpec) -> dict[str, str]:
    """Whose mechanism this fleet gives nothing to do: lock-step batches are there, or they are not."""
    made_for = [label for label, router in routers.items() if getattr(router, "lockstep", False)]
    if made_for and not spec.lockstep:
        are = "is" if len(made_for) == 1 else "are"
        note = (
            f"{', '.join(made_for)} {are} made for workers that step together, and each instance of this fleet steps "
            "on its own: there is no gap to fill; lockstep = [8] in a fleet file (examples/lockstep.toml) joins eight"
        )
        return {"notes": note}
    if spec.lockstep and not made_for:
        which = ", ".join(components.made_for_lockstep())
        return {"notes": f"this fleet steps together, and no policy here looks at that; {which} does"}
    return {}
