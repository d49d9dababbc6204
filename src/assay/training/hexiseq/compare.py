"""`assay compare hexiseq`: ways to share one long sequence among the user's own mixed machines."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.sim.models import model
from assay.training import hexiseq
from assay.training.hexiseq.machines import Machines, read
from assay.training.hexiseq.pace import Split, work
from assay.training.hexiseq.rivals import systems

COLUMNS = ("tokens_s", "seconds", "groups", "tokens_apart", "sub_rings", "memory", "fits")
UNITS = {"tokens_s": "tokens/s", "seconds": "s", "memory": "bytes a rank", "sequence": "tokens"}
MOST = 1024  # ranks


@click.command(epilog="Example:  assay compare hexiseq --cluster examples/mixed.toml --seq 131072")
@click.option(
    "--cluster", "machines", required=True,
    help="COUNTxDEVICE joined by +, such as 16xh100+16xa100, or a TOML file with [[machines]] and the network.",
)  # fmt: skip
@click.option("--seq", type=click.IntRange(1024, 2**24), default=131072, show_default=True, help="Tokens.")
@click.option("--model", "name", default="llama-3-8b", show_default=True, help="A model's name, or its config.json.")
def command(machines: str, seq: int, name: str) -> dict[str, Any]:
    """One long sequence on your own mixed machines: unequal shares, equal ones, and how to deal tokens and heads."""
    on = read(machines)
    if not 2 <= on.ranks <= MOST:
        raise BadInput(f"--cluster has {on.ranks} devices; 2 to {MOST} can be compared")
    return compare(on, name, seq)


def compare(on: Machines, name: str, seq: int) -> dict[str, Any]:
    """Every system on one cluster, and the split that HexiSeq found.

    >>> from assay.training.hexiseq.machines import mixed
    >>> answer = compare(mixed("4xh100+4xa100"), "llama-3-8b", 65536)
    >>> answer["table"][0]["system"]
    'hexiseq'
    """
    job = work(model(name), seq)
    found = systems(on, job)
    table = [{"system": system} | {column: row[column] for column in COLUMNS} for system, row in found.items()]
    table.sort(key=lambda row: -(row["tokens_s"] or 0.0))
    split = hexiseq.plan_uneven(on, model(name), seq).split
    return {
        "job": {"model": name, "sequence": seq, "devices": ", ".join(_counted(on.kind)), "nodes": len(set(on.node))},
        "plan": plan(on, split), "table": table, "why": why(table, found), "trust": hexiseq.trust, "units": UNITS,
        "shown": ["system", *COLUMNS],
    }  # fmt: skip


def plan(on: Machines, split: Split) -> list[dict[str, Any]]:
    """What each kind of group does: how many there are, tokens and heads of its ranks."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for j in range(split.groups):
        ranks = np.flatnonzero(split.group == j)
        signature = tuple((on.kind[r], int(split.heads[r])) for r in ranks)
        found.setdefault(signature, []).append(j)
    rows = []
    for signature, groups in found.items():
        ranks = np.flatnonzero(np.isin(split.group, groups))
        first = np.flatnonzero(split.group == groups[0])
        rows.append({
            "groups": len(groups), "devices": ", ".join(_counted([kind for kind, _ in signature])),
            "tokens": _shortly(split.tokens[first]), "heads": _shortly(split.heads[first]),
            "of_sequence": float(split.tokens[ranks].sum() / split.tokens.sum()),
        })  # fmt: skip
    return rows


def _counted(kinds: Any) -> list[str]:
    return [f"{list(kinds).count(kind)} {kind}" for kind in dict.fromkeys(kinds)]


def _shortly(values: Any) -> str:
    listed = values.tolist()
    return str(listed[0]) if len(set(listed)) == 1 else " ".join(map(str, listed))


def why(table: list[dict[str, Any]], found: dict[str, dict[str, Any]]) -> str:
    """Who is fastest, by how much over the best rival and over equal shares."""
    fitting = [row for row in table if row["fits"]]
    first, *others = fitting
    told = f"{first['system']} trains {first['tokens_s']:.4g} tokens a second"
    apart = [row for row in others if row["system"] not in ("ring", "ulysses")]
    if apart:
        second = apart[0]
        lead = first["tokens_s"] / second["tokens_s"]
        told += (
            f", {lead:.2f} times as many as {second['system']}" if lead >= 1.01 else f", a tie with {second['system']}"
        )
    gain = found["hexiseq"]["gain"]
    if gain is None:
        return told + "; equal shares do not fit into memory at any cut."
    return told + f"; hexiseq is at {gain:.2f} times equal shares at their best."
