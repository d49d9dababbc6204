"""`assay protocol`: your own node, simulated or over sockets, with faults."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from assay.cli.output import console, json_option, number, print_json, progress_bar, quiet_table
from assay.record.errors import BadInput

if TYPE_CHECKING:
    from assay.protocols.kernel.run import Outcome
    from assay.protocols.launch import Plan


@click.group(epilog="Example:  assay protocol run mine.py:Node --n 7 --faults equivocate:2 --live")
def command() -> None:
    """Run a protocol: one node file, in rounds, in simulated time, under an adversary, or over real sockets."""


@command.command(
    epilog="Example:  assay protocol run assay.protocols.nodes.bracha:Bracha --n 7 --inputs hello "
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
@click.option("--seeds", type=click.IntRange(1), help="Run so many seeds and summarise.")
@json_option
def run(node: str, seed: int, seeds: int | None, as_json: bool, **words: Any) -> None:
    """Run NODE, a class of yours (file.py:Class) or of the library (assay.protocols.nodes.raft:Raft).

    Ends with 1 where correct nodes contradict each other or do not decide.
    """
    plan = _plan(node, **words)
    if seeds is None:
        outcome = _guarded(lambda: plan.run(seed))
        told = _told(outcome, plan)
        print_json(told) if as_json else _show(told, plan)
        fine = not told["conflicts"] and told["undecided"] == []
    else:
        with progress_bar("seeds") as progress:
            answer = _guarded(lambda: plan.repeat(seeds, progress))
        print_json(answer) if as_json else _summary(answer)
        fine = not answer["conflicts"] and answer["decided"]["value"] == 1.0
    if not fine:
        raise click.exceptions.Exit(1)


def _plan(
    node: str, n: int, f: int | None, inputs: str, options: tuple[str, ...], faults: tuple[str, ...], net: str,
    topology: str, mode: str, live: bool, processes: int | None, kill: tuple[str, ...], limit: float | None,
) -> Plan:  # fmt: skip
    from assay.protocols import launch

    if not live and (processes or kill):
        raise BadInput("--processes and --kill belong to --live")
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
    from assay.protocols.tcp import Death

    try:
        return act()
    except (ValueError, Death) as error:
        raise BadInput(str(error).splitlines()[0]) from None
    except BadInput:
        raise
    except Exception as error:  # the user's own code; where, in one line
        last = _where(error)
        raise BadInput(f"the node failed: {type(error).__name__}: {error}{last}") from None


def _where(error: BaseException) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _told(outcome: Outcome, plan: Plan) -> dict[str, Any]:
    from assay.protocols.launch import TIMES

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
        "undecided": [node for node in outcome.correct if not outcome.decisions[node]],
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
    from assay.protocols.launch import TIMES

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


@command.command(epilog="Example:  assay protocol maelstrom assay.protocols.maelstrom:Echo  (as Maelstrom's --bin)")
@click.argument("node", metavar="FILE.py:Node")
def maelstrom(node: str) -> None:
    """Run NODE under Maelstrom: JSON lines on standard input and output."""
    from assay.protocols import launch
    from assay.protocols import maelstrom as lines

    lines.serve(launch.own(node))
