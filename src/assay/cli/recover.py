"""`assay recover`: a job that goes on when its replicas are killed; your own, or one to look at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from assay.cli.output import console, json_option, print_json, quiet_table
from assay.record.errors import BadInput, unreadable
from assay.record.extras import missing_module


@click.group(epilog="Example:  assay recover demo    or    assay recover run -n 3 examples/recover.py")
def command() -> None:
    """Training that survives kill -9 of its replicas with the same batch in every step."""


@command.command(epilog="Example:  assay recover demo --replicas 8 --steps 60")
@click.option("--replicas", default=4, show_default=True, type=click.IntRange(2, 64), help="Processes of the job.")
@click.option("--steps", default=24, show_default=True, type=click.IntRange(4), help="Optimizer steps.")
@click.option("--seed", default=0, show_default=True, help="Of the model, the data and the deaths.")
@click.option("--text", type=click.Path(dir_okay=False, path_type=Path), help="What is learnt; a generated text else.")
@json_option
def demo(replicas: int, steps: int, seed: int, text: Path | None, as_json: bool) -> None:
    """Watch a job lose half of its replicas to SIGKILL and go on, with its loss beside the failure-free one."""
    recover = _paper()
    try:
        words = text.read_text(errors="replace") if text else ""
    except OSError as error:
        raise unreadable(text, error) from error
    if as_json:
        print_json(recover.demo(replicas, steps, seed, words))
        return
    show = _live if sys.stdout.isatty() else recover.demo
    _tell(show(replicas, steps, seed, words))


@command.command("run", epilog="Example:  assay recover run -n 3 examples/recover.py")
@click.option("-n", "replicas", default=2, show_default=True, type=click.IntRange(1, 1024), help="Replicas.")
@click.option(
    "--timeout",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="Seconds of silence of a process that cannot be seen.",
)
@click.option(
    "--hang-after", default=600.0, show_default=True, type=click.FloatRange(0.1),
    help="Seconds that the others wait for a replica that runs and makes no progress; longer than any microbatch.",
)  # fmt: skip
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED)
@json_option
def run(replicas: int, timeout: float, hang_after: float, script: tuple[str, ...], as_json: bool) -> None:
    """Start SCRIPT in so many replicas on this machine; while one of them lives, the job goes on.

    The script takes its place by `assay.training.recover.join(model, batch)`. Its own options follow `--`:
    assay recover run -n 3 -- train.py --lr 0.1
    """
    if not Path(script[0]).is_file():
        raise BadInput(f"{script[0]}: no such script")
    found = _paper().launch(script, replicas, timeout, lambda line: click.echo(line, err=True), hang_after)
    if as_json:
        print_json(found)
        return
    click.echo(f"{len(found['survivors'])} of {replicas} replicas lived to the end", err=True)


def _paper() -> Any:
    try:
        import torch  # noqa: F401

        from assay.training import recover
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("recover", error)) from error
    return recover


def _live(replicas: int, steps: int, seed: int, words: str) -> dict[str, Any]:
    """The same with a line for every replica that moves while they work."""
    from rich.live import Live

    with Live(console=console(), refresh_per_second=8, transient=True) as screen:

        def told(name: str, slots: Any) -> None:
            most = int(slots[:, 0].max())
            table = quiet_table()
            for column in (name, "step", "microbatches", "members"):
                table.add_column(column)
            for rank, (step, done, members, _) in enumerate(slots):
                behind = step < most - 1
                table.add_row(
                    f"replica {rank}", f"{int(step)}/{steps}", f"{int(done)}", f"{int(members)}",
                    style="red" if behind else "", end_section=False,
                )  # fmt: skip
            screen.update(table)

        return dict(_paper().demo(replicas, steps, seed, words, told))


def _tell(found: dict[str, Any]) -> None:
    steps = found["steps"]
    click.echo(f"{found['replicas']} replicas, {found['batch']} microbatches a step; killed by SIGKILL:")
    for kill in found["kills"]:
        where = {"bucket": f"before bucket {kill['at']} was summed", "microbatch": "within its microbatches"}
        click.echo(f"  replica {kill['replica']} in step {kill['step']}, {where.get(kill['point'], 'before its vote')}")
    table = quiet_table()
    for column in ("step", "alive", "microbatches", "loss", "failure-free"):
        table.add_column(column, justify="right")
    shown = sorted({*range(0, len(steps), max(1, len(steps) // 8)), *(kill["step"] for kill in found["kills"])})
    for row in (steps[at] for at in [*shown, len(steps) - 1]):
        table.add_row(
            str(row["step"]), str(row["alive"]), str(row["microbatches"]), f"{row['loss']:.4f}",
            f"{row['failure_free_loss']:.4f}",
        )  # fmt: skip
    console().print(table)
    for line in _paper().curve([row["loss"] for row in steps], [row["failure_free_loss"] for row in steps], 72):
        click.echo(f"  {line}")
    slowest = max(found["recoveries"], default=0.0)
    click.echo(
        f"{found['survivors']} of {found['replicas']} are left. Every step had its {found['batch']} microbatches; "
        f"{found['computed_in_place_of_the_dead']} were computed in place of the dead. Weights are "
        f"{found['weights_apart']:.1e} of their norm from the failure-free ones. Survivors went on within "
        f"{slowest:.2f} s."
    )
