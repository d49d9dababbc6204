"""`assay protocol`: your own node, simulated or over sockets, with faults."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.output import console, json_option, print_json, progress_bar, quiet_table
from assay.record.errors import BadInput
from assay.record.wording import number

if TYPE_CHECKING:
    from assay.protocols.judges import safety
    from assay.protocols.kernel.launch import Plan
    from assay.protocols.kernel.run import Outcome
    from assay.protocols.kernel.trace import Trace


@click.group(epilog="Example:  assay protocol run examples/flood.py:Flood --n 7 --live")
def command() -> None:
    """Run a protocol: one node file, in rounds, in simulated time, under an adversary, or over real sockets."""


@command.command(
    epilog="Example:  assay protocol run assay.protocols.nodes:Bracha --n 7 --inputs hello "
    "--faults equivocate:2 --net lognormal --seeds 100"
)
@click.argument("node", metavar="FILE.py:Node")
@click.option("--n", type=click.IntRange(1, 100_000), default=4, show_default=True, help="How many nodes.")
@click.option("--f", type=click.IntRange(0), help="Faults the protocol is to bear.  [(n - 1) // 3]")
@click.option("--inputs", default="", help="What the nodes are given, in order: a,b,c or a JSON list.")
@click.option("--option", "options", multiple=True, metavar="NAME=JSON", help="An argument of the node's class.")
@click.option("--faults", multiple=True, help="kind:COUNT or kind@3+5, with options: crash:1:at=2. May be repeated.")
@click.option("--net", default="constant", show_default=True, help="As lognormal:0.005:0.4,drop=0.01.")
@click.option("--topology", default="complete", show_default=True, help="complete, ring, star, chain, grid, torus, …")
@click.option("--mode", type=click.Choice(["rounds", "timed", "async"]), default="timed", show_default=True)
@click.option("--live", is_flag=True, help="Real processes and TCP on loopback instead of a simulation.")
@click.option("--processes", type=click.IntRange(1, 512), help="With --live: spread the nodes over so many.")
@click.option("--kill", multiple=True, metavar="NODE@SECONDS", help="With --live: kill -9 the node's process then.")
@click.option("--limit", type=click.FloatRange(0, min_open=True), help="Rounds, seconds or deliveries at most.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--seeds", type=click.IntRange(1), help="Run so many, from --seed on, and summarise.")
@click.option("--history", type=click.Path(path_type=Path), help="Write the operations here, for `assay check`.")
@json_option
def run(node: str, seed: int, seeds: int | None, history: Path | None, as_json: bool, **words: Any) -> None:
    """Run NODE, a class of yours (file.py:Class) or of the library (assay.protocols.nodes:Raft).

    Ends with 1 where correct nodes contradict each other or do not decide; who only begins operations (ctx.invoke)
    need not decide.
    """
    plan = _plan(node, **words)
    if history is not None and seeds is not None:
        raise BadInput("--history is of one run; --seed picks it, --seeds runs many")
    if seeds is None:
        outcome = _guarded(lambda: plan.run(seed))
        told = _guarded(lambda: _told(outcome, plan))
        if history is not None:
            _write_history(history, outcome)
        print_json(told) if as_json else _show(told, plan)
        fine = not told["conflicts"] and not told["undecided"] and any(row["correct"] for row in told["nodes"])
    else:
        with progress_bar("seeds") as progress:
            answer = _guarded(lambda: plan.repeat(seeds, progress, first=seed))
        print_json(answer) if as_json else _summary(answer)
        fine = not answer["conflicts"] and answer["decided"]["value"] == 1.0
    if not fine:
        raise click.exceptions.Exit(1)


def _write_history(path: Path, outcome: Outcome) -> None:
    from assay.workloads import histories

    if not outcome.operations:
        raise BadInput("no operation began, so there is no history; nodes begin one with ctx.invoke(f, key, value)")
    histories.write(path, outcome.operations, "jepsen-edn" if path.suffix == ".edn" else "jsonl")


def _plan(
    node: str, n: int, f: int | None, inputs: str, options: tuple[str, ...], faults: tuple[str, ...], net: str,
    topology: str, mode: str, live: bool, processes: int | None, kill: tuple[str, ...], limit: float | None,
) -> Plan:  # fmt: skip
    from assay.protocols.kernel import launch

    if not live and (processes or kill):
        raise BadInput("--processes and --kill belong to --live")
    if limit is not None and not math.isfinite(limit):
        raise BadInput(f"--limit is {limit:g}; a finite number expected")
    if live and not processes and n > 512:
        raise BadInput(f"--live with {n} nodes; --processes (at most 512) says over how many to spread them")
    own = launch.own(node, _options(options))
    kills = tuple(_kill(text, n) for text in kill)
    mode = "live" if live else mode
    plan = launch.Plan(own, n, f, mode, _inputs(inputs), faults, net, topology, limit, processes, kills)
    plan.world(0)
    return plan


def _options(texts: tuple[str, ...]) -> dict[str, Any]:
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
        if not equals:
            raise BadInput(f"--option '{text}': NAME=VALUE expected")
    return options


def _inputs(text: str) -> tuple[Any, ...]:
    if text.startswith("["):
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise BadInput(f"--inputs is no JSON list: {error.msg} at column {error.colno}") from None
        return tuple(found)
    return tuple(_number_or_text(part) for part in text.split(",")) if text else ()


def _number_or_text(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text


def _kill(text: str, n: int) -> tuple[int, float]:
    node, _, seconds = text.partition("@")
    try:
        victim, at = int(node), float(seconds or 0)
    except ValueError:
        raise BadInput(f"--kill '{text}': NODE@SECONDS expected, as 3@0.5") from None
    if not 0 <= victim < n:
        raise BadInput(f"--kill '{text}': there are nodes 0 to {n - 1}")
    return victim, at


def _guarded(act: Any) -> Any:
    from assay.protocols.kernel.run import blame, place
    from assay.protocols.tcp import Death

    try:
        return act()
    except BadInput:
        raise
    except Death as error:
        raise BadInput(str(error).splitlines()[0]) from None
    except (Exception, SystemExit) as error:  # the user's own code; where, in one line
        if isinstance(error, ValueError) and place(error) is None:
            raise BadInput(str(error)) from None
        raise BadInput(f"the node failed: {blame(error)}") from None


def _told(outcome: Outcome, plan: Plan) -> dict[str, Any]:
    from assay.protocols.kernel.launch import TIMES

    meter = outcome.meter
    return {
        "nodes": [
            {
                "node": node,
                "correct": node in outcome.correct,
                "decisions": [[slot, value] for slot, value in outcome.decisions[node].items()],
                "sent": meter.by_node[node][0],
            }
            for node in range(plan.n)
        ],
        "undecided": [
            node for node in outcome.correct if not outcome.decisions[node] and (outcome.log or not outcome.operations)
        ],
        "operations": len(outcome.operations),
        "conflicts": [list(entry) for entry in outcome.conflicts],
        "stopped": outcome.stopped,
        TIMES[plan.mode]: outcome.time,
        "messages": meter.messages,
        "bits": meter.bits,
        "depth": meter.depth,
        "by_kind": {kind: {"messages": entry[0], "bits": entry[1]} for kind, entry in sorted(meter.by_kind.items())},
        "dropped": meter.dropped,
        "refused": outcome.refused,
        "digest": outcome.digest if plan.mode != "live" else None,
    }


def _show(told: dict[str, Any], plan: Plan) -> None:
    from assay.protocols.kernel.launch import TIMES

    table = quiet_table()
    for name in ("node", "", "decided", "sent"):
        table.add_column(name, justify="right" if name == "sent" else "left", overflow="fold")
    shown = told["nodes"] if plan.n <= 32 else told["nodes"][:16] + told["nodes"][-16:]
    for row in shown:
        values = ", ".join(_pair(slot, value) for slot, value in row["decisions"][:6])
        more = len(row["decisions"]) - 6
        values += f", … {more} more" if more > 0 else ""
        table.add_row(str(row["node"]), "" if row["correct"] else "faulty", values or "–", number(row["sent"]))
    out = console()
    out.print(table)
    kinds = ", ".join(f"{kind} {number(entry['messages'])}" for kind, entry in told["by_kind"].items())
    time = TIMES[plan.mode]
    out.print(f"{number(told['messages'])} messages ({kinds}), {number(told['bits'])} bits")
    out.print(f"{time.replace('_', ' ')}: {number(told[time])}; stopped: {told['stopped']}")
    if told["digest"]:
        out.print(f"digest {told['digest']}", style="dim")
    for why, times in Counter(told["refused"]).most_common(5):
        out.print(f"[yellow]cut off[/yellow] {times} times: {why}")
    for entry in told["conflicts"][:3]:
        out.print(f"[red]contradiction[/red]: node {entry[1]} decided {entry[3]!r} for slot {entry[2]!r}")
    if told["undecided"]:
        out.print(f"[yellow]undecided[/yellow]: nodes {', '.join(map(str, told['undecided'][:20]))}")


def _pair(slot: Any, value: Any) -> str:
    text = repr(value)
    text = text if len(text) <= 40 else f"{text[:37]}…"
    return text if slot == 0 else f"{slot}: {text}"


def _summary(answer: dict[str, Any]) -> None:
    table = quiet_table()
    for name in ("", "min", "median", "max"):
        table.add_column(name, justify="right" if name else "left")
    for name, spread in answer["costs"].items():
        table.add_row(name.replace("_", " "), *(number(spread[key]) for key in ("min", "median", "max")))
    out = console()
    out.print(table)
    share = answer["decided"]
    out.print(
        f"{answer['runs']} runs; every correct node decided in {share['value']:.1%} "
        f"({share['low']:.1%} to {share['high']:.1%}); contradictions in {answer['conflicts']}"
    )
    if answer["first_conflict"] is not None:
        out.print(f"[red]see it[/red] with --seed {answer['first_conflict']}")


@command.command(
    epilog="Examples:  assay protocol search pbft --faulty 2;  "
    "assay protocol search examples/flood.py:Flood --n 4 --inputs a --faulty 1 --out found.json"
)
@click.argument("node", metavar="SCENARIO|FILE.py:Node")
@click.option("--faulty", type=click.IntRange(0), default=1, show_default=True, help="How many nodes lie or crash.")
@click.option(
    "--faults", type=click.Choice(["byzantine", "crash", "recover", "amnesia"]),
    help="What befalls them: any lie, stopping for good, a reboot with the disk or without.  [byzantine]",
)  # fmt: skip
@click.option("--fifo", is_flag=True, help="What one node sends another arrives in the order of sending.")
@click.option(
    "--partition", metavar="GROUPS[@FROM-TO]", help="Groups that do not hear each other, as 0+1/2+3; counted in "
    "deliveries, as 0/1+2@10-50.",
)  # fmt: skip
@click.option(
    "--judge", "judges", multiple=True, metavar="NAME|FILE.py:function",
    help="agreement, integrity, proposed, totality, linearizable, mutual-exclusion (of acquire and release), or your "
    "own: (world, outcome) to what is wrong, or None. May be repeated.  [agreement]",
)  # fmt: skip
@click.option("--option", "options", multiple=True, metavar="NAME=JSON", help="An argument of the node's class.")
@click.option("--schedules", type=click.IntRange(1), default=1000, show_default=True, help="Adversarial runs.")
@click.option("--n", type=click.IntRange(1, 64), default=4, show_default=True, help="Of a node of your own.")
@click.option("--f", type=click.IntRange(0), help="Faults the protocol is to bear.  [(n - 1) // 3]")
@click.option("--inputs", default="", help="What the nodes are given, in order: a,b,c or a JSON list.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=600.0, show_default=True, help="At most.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the violation to this file.")
@click.option("--replay", type=click.Path(path_type=Path), help="Repeat a violation from such a file instead.")
@json_option
def search(node: str, out: Path | None, replay: Path | None, as_json: bool, **words: Any) -> None:
    """Look for a schedule and faults that break a protocol, and cut what is found down to what it takes.

    SCENARIO is one of broadcast, aba, raft, raft-forgetful, pbft; FILE.py:Node is a node of yours, judged by
    agreement unless --judge says otherwise. Ends with 1 where a judge objects.
    """
    from assay.protocols.kernel import trace as traces

    hunt = _hunt(node, **words)
    if replay is not None:
        told = _guarded(lambda: _replayed(hunt, traces.load(replay), replay))
    else:
        found = _guarded(hunt.run)
        if not found.decided and found.trace is None and not hunt.scene.traced:
            raise BadInput(
                f"nobody decided anything in {found.schedules} schedules, so nothing was judged; --inputs, fewer "
                "--faulty, or a --judge of your own that needs no decisions, expected"
            )
        if out is not None and found.trace is not None:
            traces.save(out, hunt.world(found.seed), found.trace)
        told = {
            "schedules": found.schedules, "finished": found.finished, "decided": found.decided,
            "deliveries": found.deliveries, "seconds": found.seconds,
            "violation": None if found.trace is None else found.trace.why, "seed": found.seed,
            "events": None if found.trace is None else len(found.trace.events), "before_shrinking": found.length,
            "trace": None if found.trace is None else str(found.trace),
        }  # fmt: skip
    print_json(told) if as_json else _searched(told)
    if told["violation"]:
        raise click.exceptions.Exit(1)


def _hunt(
    node: str, faulty: int, schedules: int, n: int, f: int | None, inputs: str, seconds: float, faults: str | None,
    fifo: bool, partition: str | None, judges: tuple[str, ...], options: tuple[str, ...],
) -> safety.Hunt:  # fmt: skip
    from assay.protocols.judges import safety
    from assay.protocols.kernel import launch

    if node not in safety.SCENARIOS and ":" not in node:
        raise BadInput(f"no scenario '{node}'; one of {', '.join(safety.SCENARIOS)}, or FILE.py:Node expected")
    if node in safety.SCENARIOS:
        if options or inputs:
            raise BadInput(f"--option and --inputs are for a node of your own; '{node}' has its own")
        scene = safety.SCENARIOS[node]
    else:
        plan = launch.Plan(launch.own(node, _options(options)), n, f, "async", inputs=_inputs(inputs))
        scene = safety.own_scenario(plan.world)
    if faults is not None:
        scene = replace(scene, corrupt=safety.CORRUPTIONS[faults])
    if judges:
        chosen = [safety.SEARCHED[name] if name in safety.SEARCHED else _own_judge(name) for name in judges]
        traced = any(name not in safety.SEARCHED for name in judges)
        scene = replace(scene, judge=safety.all_of(*chosen), total=False, traced=traced)
    if fifo:
        scene = replace(scene, world=_in_order(scene.world))
    nodes = scene.world(0).n
    around = _partition(partition, nodes) if partition else None
    hunt = safety.Hunt(scene, faulty, schedules, seconds)
    return replace(hunt, around=around) if around else hunt


def _own_judge(name: str) -> Any:
    from assay.protocols.judges import safety

    if ":" not in name:
        raise BadInput(f"no judge '{name}'; one of {', '.join(safety.SEARCHED)}, or FILE.py:function expected")
    return safety.own_judge(name)


def _in_order(make: Any) -> Any:
    def world(seed: int) -> Any:
        made = make(seed)
        return replace(made, net=replace(made.net, fifo=True))

    return world


def _partition(text: str, n: int) -> Any:
    """What makes a scheduler obey the partition."""
    from assay.protocols.kernel.asynchronous import Partitioned

    parts, _, span = text.partition("@")
    begun, _, ended = span.partition("-")
    try:
        groups = [[int(node) for node in part.split("+")] for part in parts.split("/")]
        start, stop = int(begun or 0), int(ended) if ended else math.inf
    except ValueError:
        raise BadInput(f"--partition '{text}': groups of nodes expected, as 0+1/2+3 or 0/1+2@10-50") from None
    named = [node for group in groups for node in group]
    if len(groups) < 2 or len(set(named)) < len(named) or not all(0 <= node < n for node in named) or stop <= start:
        raise BadInput(f"--partition '{text}': two or more groups of nodes 0 to {n - 1}, each once, and FROM before TO")
    return lambda inner: Partitioned(inner, groups, start, stop)


def _replayed(hunt: safety.Hunt, trace: Trace, path: Path) -> dict[str, Any]:
    why = hunt.replay(trace, trace.seed)
    if why is None:
        raise BadInput(
            f"{path}: the run does not break this world; give the same node and options as it was found with"
        )
    return {"violation": why, "events": len(trace.events), "trace": str(trace)}


def _searched(told: dict[str, Any]) -> None:
    out = console()
    if "schedules" in told:
        runs = f"{number(told['schedules'])} schedules ({number(told['finished'])} to their end, decisions in "
        runs += f"{number(told['decided'])}), {number(told['deliveries'])} deliveries"
        out.print(f"{runs}, {told['seconds']:.1f} s")
    if not told["violation"]:
        out.print("[green]no violation found[/green]")
        return
    shrunk = f", shrunk from {told['before_shrinking']}" if "before_shrinking" in told else ""
    out.print(f"[red]violation[/red] in {told['events']} deliveries{shrunk}:")
    out.print(told["trace"], highlight=False, markup=False)


@command.command(
    epilog="Examples:  assay protocol explore assay.protocols.nodes:Bracha --n 4 --inputs a --faulty 1;  "
    """assay protocol explore examples/flood.py:Flood --n 3 --inputs a"""
)
@click.argument("node", metavar="FILE.py:Node")
@click.option("--n", type=click.IntRange(1, 8), default=3, show_default=True, help="How many nodes.")
@click.option("--f", type=click.IntRange(0), help="Faults the protocol is to bear.  [(n - 1) // 3]")
@click.option("--inputs", default="", help="What the nodes are given, in order: a,b,c or a JSON list.")
@click.option("--option", "options", multiple=True, metavar="NAME=JSON", help="An argument of the node's class.")
@click.option("--faulty", type=click.IntRange(0), default=0, show_default=True, help="So many nodes, from 0 on, lie.")
@click.option("--lie", "lies", multiple=True, metavar="JSON", help="A message that liars may send.  [all of their own]")
@click.option("--judge", type=click.Choice(["agreement", "integrity", "proposed"]), multiple=True, help="[agreement]")
@click.option("--timers", type=click.IntRange(0), default=0, show_default=True, help="How often a node's may fire.")
@click.option("--depth", type=click.IntRange(1), help="Steps of a schedule at most.")
@click.option("--states", type=click.IntRange(1), default=1_000_000, show_default=True, help="Looked at, at most.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, help="At most.")
@json_option
def explore(
    node: str, n: int, f: int | None, inputs: str, options: tuple[str, ...], faulty: int, lies: tuple[str, ...],
    judge: tuple[str, ...], as_json: bool, **bounds: Any,
) -> None:  # fmt: skip
    """Try every schedule of a few nodes, with liars that may say anything of theirs to anybody at any time.

    Where no bound ends the search, what it does not find is not there. Ends with 1 where a judge objects, with the
    deliveries that it takes.
    """
    from assay.protocols.judges import safety
    from assay.protocols.kernel import launch

    world = launch.Plan(launch.own(node, _options(options)), n, f, inputs=_inputs(inputs)).world(0)
    if "proposed" in judge and len(world.inputs or ()) < n:
        raise BadInput(f"--judge proposed needs an input for each of {n} nodes; --inputs with {n} values expected")
    judges = [safety.JUDGES[name] for name in judge or ("agreement",)]
    said = [_lie(text) for text in lies] or None
    found, trace = _guarded(lambda: safety.exhaust(world, safety.all_of(*judges), faulty=faulty, lies=said, **bounds))
    if not found.decisions:
        raise BadInput(
            f"nobody decided anything in {found.states} states, so nothing was judged; --inputs, --timers, or larger "
            "bounds expected"
        )
    told = {
        "states": found.states, "transitions": found.transitions, "decisions": found.decisions,
        "complete": found.complete, "bound": "" if trace else found.why, "seconds": found.seconds,
        "violation": trace.why if trace else None, "events": len(trace.events) if trace else None,
        "trace": str(trace) if trace else None,
    }  # fmt: skip
    print_json(told) if as_json else _explored(told)
    if trace:
        raise click.exceptions.Exit(1)


def _lie(text: str) -> tuple[Any, ...]:
    try:
        message = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"--lie '{text}' is no JSON: {error.msg} at column {error.colno}") from None
    if not (isinstance(message, list) and message and isinstance(message[0], str)):
        raise BadInput(f"--lie '{text}': a list that begins with the message's kind expected, as [\"vote\", 0]")
    return _tuples(message)  # type: ignore[no-any-return]


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _explored(told: dict[str, Any]) -> None:
    out = console()
    seen = f"{number(told['states'])} states, {number(told['transitions'])} steps between them"
    out.print(f"{seen}, {number(told['decisions'])} different sets of decisions, {told['seconds']:.1f} s")
    if told["violation"]:
        out.print(f"[red]violation[/red] in {told['events']} deliveries:")
        out.print(told["trace"], highlight=False, markup=False)
    elif told["complete"]:
        out.print("[green]no schedule goes wrong[/green]: all were tried")
    else:
        out.print(f"[yellow]no violation found, but not all was tried[/yellow]: {told['bound']}")


@command.command(epilog="Example:  assay protocol experiment examples/pbft.json --json")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--peer", "peers", multiple=True, metavar="NAME=FILE.py:Node", help="The class of a peer type of yours.")
@click.option("--live", is_flag=True, help="Over real sockets instead of in rounds.")
@json_option
def experiment(file: Path, peers: tuple[str, ...], live: bool, as_json: bool) -> None:
    """Run a QUANTAS experiment FILE as it is: the same JSON, our nodes."""
    from assay.protocols import quantas as experiments
    from assay.protocols.kernel import launch

    own = {}
    for text in peers:
        name, equals, where = text.partition("=")
        if not equals:
            raise BadInput(f"--peer '{text}': NAME=FILE.py:Node expected")
        own[name] = launch.own(where)
    answer = _guarded(lambda: experiments.answer(file, live=live, own=own))
    if as_json:
        print_json(answer)
        return
    columns = list(dict.fromkeys(column for row in answer["table"] for column in row))
    table = quiet_table()
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in answer["table"]:
        table.add_row(*(number(row.get(column, "")) for column in columns))
    console().print(table)


@command.command(
    epilog="Example:  assay protocol maelstrom assay.protocols.kernel.maelstrom:Echo  (as Maelstrom's --bin)"
)
@click.argument("node", metavar="FILE.py:Node")
def maelstrom(node: str) -> None:
    """Run NODE under Maelstrom: JSON lines on standard input and output."""
    from assay.protocols.kernel import launch
    from assay.protocols.kernel import maelstrom as lines

    made = launch.own(node)
    _guarded(lambda: lines.serve(made))
