"""`assay compare buddy`: your own application, its handlers on batches of rows, inline and with a proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.record.timing import Gauge
from assay.sim import own_code
from assay.sim.ranks import RankFailed
from assay.training.buddy.launch import MODES, Machine, Ran, Task, run
from assay.training.buddy.trials import places

UNITS = {"seconds": "s", "host": "s", "agent": "s"}
TIE = 0.1


@click.command(epilog="Example:  assay compare buddy --app examples/messages.py:count_words --words 1")
@click.option(
    "--app", required=True, metavar="FILE.py:FUNCTION",
    help="A function of a Comm: on(tag, handler), send(dest, payload, tag), poll(), quiet(); it returns whole numbers.",
)  # fmt: skip
@click.option("--words", type=click.IntRange(1, 16), default=1, show_default=True, help="Of a payload.")
@click.option("--nodes", type=click.IntRange(1, 8), default=2, show_default=True, help="Each with an agent.")
@click.option("--ranks", type=click.IntRange(1, 8), default=1, show_default=True, help="Of a node.")
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True, help="Medians are of so many runs.")
def command(app: str, words: int, nodes: int, ranks: int, rounds: int) -> dict[str, Any]:
    """Your own messages, gathered by the application itself, by a proxy, or only at barriers."""
    if not callable(own_code.load(app)):
        raise BadInput(f"{app}: should be a function of one argument, a Comm")
    return compare(app, words, nodes, ranks, rounds)


def compare(app: str, words: int, nodes: int = 2, ranks: int = 1, rounds: int = 3) -> dict[str, Any]:
    """Every way to communicate, with the same processes and processors; a spare one for the agents."""
    host, spare = places()
    where, _, name = app.rpartition(":")
    app = f"{Path(where).resolve()}:{name}" if where.endswith(".py") else app  # ranks may stand elsewhere
    task, table, results = Task("own", own=app, words=words), [], {}
    with Gauge() as gauge:
        for mode in MODES:
            try:
                ran = run(mode, [task] * rounds, Machine(nodes, ranks, host, spare), seed=0)
            except RankFailed as error:
                raise BadInput(f"{app}: {error}") from error
            results[mode] = np.sort(ran[0].result)
            table.append(_row(mode, ran))
    table.sort(key=lambda row: row["seconds"])
    first, second = table[:2]
    lead = second["seconds"] / first["seconds"] - 1
    same = all(np.array_equal(results["inline"], other) for other in results.values())
    told = "the results are the same" if same else "the results differ, which may be the application's own doing"
    lead_told = f"{first['mode']} and {second['mode']} tie" if lead < TIE else (
        f"{first['mode']} is fastest, {second['mode']} takes {lead:.0%} longer".replace("%", " %"))  # fmt: skip
    return {
        "app": {"name": app, "ranks": nodes * ranks, "rows": table[0]["rows"], "same_results": same,
                "free_cores": round(gauge.free, 2) if np.isfinite(gauge.free) else None},
        "table": table, "units": UNITS, "why": f"{lead_told}; {told}.",
        "trust": "Seconds are of this machine, now: free_cores says how many processors others left.",
        "shown": ["mode", "seconds", "host", "agent", "rows", "packets"],
    }  # fmt: skip


def _row(mode: str, ran: list[Ran]) -> dict[str, Any]:
    middle = {name: float(np.median([getattr(one, name) for one in ran])) for name in ("seconds", "host", "agent")}
    return {"mode": mode, **middle, "rows": ran[0].rows, "packets": ran[0].packets}
