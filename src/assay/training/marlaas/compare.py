"""`assay compare marlaas`: the user's own task, trained alone and beside other tenants."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput
from assay.sim import own_code
from assay.training import marlaas
from assay.training.marlaas.policy import Task


@click.command(epilog="Example:  assay compare marlaas --task examples/tenant.py:Task")
@click.option(
    "--task", "sources", required=True, multiple=True, metavar="FILE.py:CLASS",
    help="A class with a name and reward(prompt, output): three digits, two digits, a number from 0 to 1. Repeat it.",
)  # fmt: skip
@click.option("--beside", type=click.IntRange(0, len(marlaas.TASKS)), default=4, show_default=True,
              help="Tenants with built-in tasks that train with it.")  # fmt: skip
@click.option("--steps", type=click.IntRange(1, 5000), default=120, show_default=True, help="RL steps of each tenant.")
@click.option("--staleness", type=click.IntRange(0, 4), default=1, show_default=True, help="Steps that rollouts lag.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(sources: tuple[str, ...], beside: int, steps: int, staleness: int, seed: int) -> dict[str, Any]:
    """Your own RL tasks as tenants of one base model: what they learn together, alone, and whether bits differ."""
    own = [_task(source) for source in sources]
    others = [task for task in marlaas.TASKS if task.name not in {one.name for one in own}][:beside]
    if len({one.name for one in own}) < len(own):
        raise BadInput("--task: give each a name of its own")
    try:
        together = marlaas.train([*own, *others], steps, seed, staleness=staleness)
        alone = {task.name: marlaas.train([task], steps, seed, staleness=staleness)[task.name] for task in own}
    except Exception as error:
        raise BadInput(f"--task: reward raised {type(error).__name__}: {error}") from error
    table = []
    for name, mine in together.items():
        last = float(np.mean(mine.rewards[-marlaas.LAST :]))
        row: dict[str, Any] = {"tenant": name, "reward_first": mine.rewards[0], "reward_last": last, "lag": mine.lag}
        row["as_alone"] = None  # of the user's own tasks alone
        if name in alone:
            row["as_alone"] = "bit for bit" if marlaas.same(mine, alone[name]) else "differs"
        table.append(row)
    told = ", ".join(f"{name} comes to a reward of {row['reward_last']:.2f}" for name, row in
                     ((row["tenant"], row) for row in table) if name in alone)  # fmt: skip
    equal = all(marlaas.same(together[name], one) for name, one in alone.items())
    return {
        "job": {"tenants": len(together), "steps": steps, "staleness": staleness}, "table": table, "units": {},
        "why": f"{told}; " + ("beside others as alone, bit for bit." if equal else "not as alone: reward is not a "
                              "function of prompt and output only."),
        "trust": marlaas.trust,
    }  # fmt: skip


def _task(source: str) -> Task:
    made = own_code.load(source)
    try:
        task: Task = made()
        name: Any = task.name
        worth = float(task.reward([1, 2, 3], [4, 5]))
    except Exception as error:
        raise BadInput(
            f"{source} should be a class with a name and reward(prompt, output): {type(error).__name__}: {error}"
        ) from error
    if not isinstance(name, str) or not np.isfinite(worth):
        raise BadInput(f"{source}: name should be text and reward give a number")
    return task
