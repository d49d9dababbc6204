"""`assay check`: which consistency model a history satisfies, and the few operations that show which it does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.output import console, json_option, print_json, quiet_table

if TYPE_CHECKING:
    from assay.protocols.judges.judgement import Judgement
    from assay.protocols.judges.lattice import Ladder
    from assay.workloads.histories import Operation

SIGNS = {"holds": ("✓", "green"), "violated": ("✗", "red"), "unknown": ("?", "yellow")}


@click.command(
    epilog="Example:  assay check examples/history.edn    or    assay check examples/history.jsonl --model linearizable"
)
@click.argument("history", type=click.Path(path_type=Path))
@click.option(
    "--model", default="strongest", show_default=True,
    help="strongest: which models hold, and what broke the next one. Or one: linearizable, per-key-linearizable, "
    "sequential, causal-memory, causal-convergent, causal, pram, read-your-writes, monotonic-reads, monotonic-writes, "
    "writes-follow-reads; of transactions strict-serializable, strong-session-serializable, serializable, "
    "strong-session-snapshot-isolation, snapshot-isolation, read-committed, read-uncommitted.",
)  # fmt: skip
@click.option(
    "--spec", help="register, cas-register, kv, set, counter, queue, mutex, list-append, rw-register, multi-register, "
    "bank, bank:AMOUNT (what every account held at first), or your own as FILE.py:Spec; told from the operations "
    "unless given.",
)  # fmt: skip
@click.option(
    "--initial", metavar="JSON", help="What the objects hold before anything is written: 0, or by key "
    '{"x": 0, "y": 1}.  [nothing]',
)  # fmt: skip
@click.option(
    "--format", help="jsonl, jepsen-edn, jepsen-json, porcupine-log or porcupine-json; told from the content."
)
@click.option(
    "--expect", metavar="LEVEL",
    help="The weakest model that is good enough: exit code 1 where it does not hold.  [transactions: "
    "snapshot-isolation, so a dirty read or a lost update fails; others: linearizable, so a stale read does]",
)  # fmt: skip
@click.option("--steps", type=click.IntRange(1), help="Steps of a search before it answers 'unknown'.")
@json_option
def command(
    history: Path, model: str, spec: str | None, initial: str | None, format: str | None, expect: str | None,
    steps: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Judge a HISTORY of operations: JSON lines, Jepsen's EDN or JSON, Porcupine's logs.

    Exit code 0: the model holds, or of the strongest what is expected does; 1: it is violated, or nobody knows; 2: the
    input is wrong.
    """
    from assay.protocols.judges import lattice
    from assay.protocols.judges.judgement import ENOUGH, Budget
    from assay.record.errors import BadInput
    from assay.workloads import histories

    if model != "strongest" and model not in lattice.MODELS:
        raise BadInput(f"no model '{model}'; there are strongest, {', '.join(lattice.MODELS)}")
    if expect is not None and model != "strongest":
        raise BadInput(f"--expect {expect} with --model {model}: one model is judged; leave one of them out")
    operations = histories.read(history, format)
    expected = _expected(expect, operations)
    if not operations and not as_json:
        click.echo("no client did anything in this history: every model holds, and nothing is learnt", err=True)
    chosen = _specification(spec, operations, initial)
    budget = ENOUGH if steps is None else Budget(nodes=steps)
    if model != "strongest":
        judgement = lattice.judge(operations, model, chosen, budget)
        if as_json:
            print_json(_row(judgement))
        else:
            _print(operations, judgement)
        raise click.exceptions.Exit(0 if judgement.holds else 1)
    ladder = lattice.strongest(operations, chosen, budget)
    if as_json:
        models = [_row(judgement) for judgement in ladder.rows]
        print_json({"maximal": ladder.maximal, "expected": expected, "models": models})
    else:
        _print_ladder(operations, ladder)
        sign, _ = SIGNS[ladder[expected].verdict]
        click.echo(f"\n{sign} expected {expected}: {ladder[expected].verdict}" + ("" if expect else " (see --expect)"))
    raise click.exceptions.Exit(0 if ladder[expected].holds else 1)


def _expected(asked: str | None, operations: list[Operation]) -> str:
    """The model whose violation fails: no dirty read and no lost update of transactions, no stale read of others."""
    from assay.protocols.judges import lattice
    from assay.record.errors import BadInput

    transactions = any(operation.f == "txn" for operation in operations)
    known = lattice.levels_of(transactions=transactions)
    if asked is None:
        return "snapshot-isolation" if transactions else "linearizable"
    if asked not in known:
        kind = "transactions" if transactions else "operations on single objects"
        raise BadInput(f"--expect {asked}: no model of {kind}; there are {', '.join(known)}")
    return asked


def _specification(spec: str | None, operations: list[Operation], initial: str | None) -> Any:
    """What was asked for, or None: to be told from the operations."""
    from assay.protocols.judges import specifications
    from assay.record.errors import BadInput

    if initial is not None:
        import json

        try:
            given = json.loads(initial)
        except json.JSONDecodeError as error:
            raise BadInput(f"--initial '{initial}' is no JSON: {error.msg}; 0, or {{\"x\": 0}}, is") from None
        plain = _specification(spec, operations, None) or specifications.guess(operations)
        return specifications.beginning(plain, _with_keys(given, operations))
    if spec is None:
        return None
    if spec.startswith("bank:"):
        try:
            return specifications.bank(float(spec.removeprefix("bank:")), operations)
        except ValueError:
            raise BadInput(f"--spec {spec}: an amount behind 'bank:' would be right") from None
    return specifications.load(spec)


def _with_keys(given: Any, operations: list[Operation]) -> Any:
    """JSON knows keys of one kind only: those that the history has as numbers become numbers."""
    if not isinstance(given, dict):
        return given
    named = {operation.key for operation in operations if isinstance(operation.key, int)}
    named |= {
        step[1]
        for operation in operations if operation.f == "txn"
        for step in operation.value or () if isinstance(step[1], int)
    }  # fmt: skip
    numbers = {str(key): key for key in named}
    return {numbers.get(key, key): value for key, value in given.items()}


def _row(judgement: Judgement) -> dict[str, Any]:
    return {
        "model": judgement.model,
        "verdict": judgement.verdict,
        "witness": judgement.witness,
        "reason": judgement.reason,
        "prefix": judgement.prefix,
        "order": judgement.order,
        "keys": judgement.keys,
    }


def _print(operations: list[Operation], judgement: Judgement) -> None:
    sign, _ = SIGNS[judgement.verdict]
    click.echo(f"{sign} {judgement.model}: {judgement.verdict}")
    if judgement.reason:
        click.echo(judgement.reason)
    if judgement.verdict != "holds" and judgement.prefix:
        click.echo(f"all was well until {judgement.prefix:,} operations had returned")
    _draw(operations, judgement)


def _print_ladder(operations: list[Operation], ladder: Ladder) -> None:
    from rich.text import Text

    from assay.protocols.judges import lattice

    table = quiet_table()
    table.add_column("model")
    table.add_column("verdict", no_wrap=True)
    table.add_column("", overflow="fold", ratio=1)
    for judgement in ladder.rows:
        sign, colour = SIGNS[judgement.verdict]
        maximal = lattice.SAME.get(judgement.model, judgement.model) in ladder.maximal
        note = "strongest that holds" if maximal else judgement.reason
        table.add_row(judgement.model, Text(f"{sign} {judgement.verdict}", style=colour), Text(note))
    console().print(table)
    for judgement in ladder.broken:
        click.echo(f"\nwhat broke {judgement.model}: {judgement.reason}")
        _draw(operations, judgement)


def _draw(operations: list[Operation], judgement: Judgement) -> None:
    from assay.protocols.judges.judgement import draw

    if judgement.witness:
        click.echo(draw(operations, judgement.witness, console().width))
