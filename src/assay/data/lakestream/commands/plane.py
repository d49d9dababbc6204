"""`assay data plane`: publish files as training batches, read them rank by rank, reclaim what no checkpoint needs."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from assay.data.engine.inputs import Unended
from assay.data.interface import StoreError
from assay.data.lakestream.jobs import opened, produce, slices
from assay.data.lakestream.pace import pace_named
from assay.data.lakestream.plan import Plan
from assay.data.lakestream.plane import GRACE, Plane
from assay.data.lakestream.sources import Source, found, unpack
from assay.data.store.address import open_store
from assay.data.store.blocking import wait
from assay.data.store.wrappers import Metered
from assay.record.errors import BadInput
from assay.sim.ledger import Ledger
from assay.sim.own_code import load


@click.group(epilog="Example:  assay data plane produce run1 examples/chats.jsonl --ranks 2 --batch 16")
def command() -> None:
    """Feed a training job from a store: producers and trainers share nothing else, and either may die."""


@command.command("produce", epilog="Example:  assay data plane produce run1 examples/chats.jsonl --ranks 2 --batch 16")
@click.argument("store")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--name", default="p0", show_default=True, help="Who this is; the same name goes on where it stopped.")
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Records to a global batch.")
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True, help="Slices to a batch.")
@click.option("--part", default="1/1", show_default=True, help="This producer's share of the batches: 2/4, say.")
@click.option("--pace", default="adaptive", show_default=True, help="adaptive, aimd, batch, or seconds.")
@click.option(
    "--bad", type=click.Choice(["stop", "skip"]), default="stop", show_default=True,
    help="At a record or file that cannot be read: stop, or list it in STORE/bad and go on, with exit code 1.",
)  # fmt: skip
@click.option("--growing", is_flag=True, help="FILES are written on: hold a last line without an end back.")
@click.option("--map", "convert", help="module:function or file.py:function, from a record's bytes to bytes.")
def produce_files(
    store: str, files: tuple[Path, ...], name: str, batch: int, ranks: int, part: str, pace: str, bad: str,
    growing: bool, convert: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Publish the records of FILES (lines, JSON lines, parquet; other files whole; folders) as batches in STORE.

    Kill it whenever you like and run it again: every record is in exactly one step, also where files grew, were renamed
    or came between others meanwhile. A file belongs to one name, a share to one, too. A last line without an end is
    held back, with exit code 1, while some process has its file open to write, unless it is whole JSON.
    """
    share, _, of = part.partition("/")
    if not (share.isdecimal() and of.isdecimal() and 1 <= int(share) <= int(of)):
        raise BadInput(f"'{part}' is no share; 2/4 for the second of four expected")
    opened_store = open_store(store)
    plan = Plan(opened_store, name)
    paths = _outside(found(files), store)
    shape = {"slices": ranks, "producers": int(of)}
    plan.not_others(paths, opened(opened_store, **shape).manifest.state)
    unended = Unended(growing)
    source = Source(
        paths, batch, ranks, int(share) - 1, int(of), load(convert) if convert else bytes, plan,
        unended=unended,
    )  # fmt: skip
    wrong: list[bytes] = []
    if bad == "skip":
        listed = lambda where, why: wrong.append(msgspec.json.encode({"bad": where + why}))  # noqa: E731
        source = dataclasses.replace(source, bad=listed)
    progress = click.get_current_context().obj
    published = 0

    def seen(count: int) -> None:
        nonlocal published
        published = count
        progress(count, count + 1)

    ledger, began = Ledger(), time.perf_counter()
    done = produce(
        Metered(opened_store, ledger), name, source, pace=pace_named(pace), seen=seen, **shape
    )  # fmt: skip
    facts: dict[str, Any] = {
        "batches": published,
        "commits": done.commits,
        "conflicts": done.conflicts,
        "started": done.epoch,
    }
    facts |= {"seconds": round(time.perf_counter() - began, 2)}
    why = _published(published, done.epoch)
    if wrong:
        key = f"bad/{name}-{done.epoch:06d}.jsonl"
        wait(opened_store.put(key, b"\n".join(wrong) + b"\n"))
        facts["bad"] = len(wrong)
        why += f" {len(wrong)} records or files could not be read and were left out: {key} in {store} lists them."
    if unended.files:
        facts["held_back"] = len(unended.files)
        why += " " + unended.said()
    return {"published": facts, "store": _cost(ledger), "why": why, "fails": bool(wrong or unended.files)}


def _published(batches: int, epoch: int) -> str:
    if batches:
        return f"{batches} batches became visible" + (f"; start {epoch} of this name." if epoch > 1 else ".")
    return "Nothing to publish: these files hold no record, or all of them are visible already."


def _outside(files: list[Path], store: str) -> list[Path]:
    """Without the plane's own objects, where it lies in a folder that is read."""
    inside = Path(store).resolve()
    kept = [path for path in files if "://" in store or not path.is_relative_to(inside)]
    if not kept:
        raise BadInput(f"all of these files are the plane's own: they lie in {store}")
    return kept


@command.command("consume", epilog="Example:  assay data plane consume run1 --rank 0 --world 2 --out rank0.jsonl")
@click.argument("store")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True)
@click.option("--world", type=click.IntRange(1), default=1, show_default=True, help="Ranks that share each batch.")
@click.option("--step", type=click.IntRange(0), default=0, show_default=True, help="The first step.")
@click.option("--steps", type=click.IntRange(1), help="At most so many.")
@click.option("--turns", default="", help="Producers whose batches are taken in turn: p0,p1. Else as committed.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="A file for the records, a line each.")
def consume(
    store: str, rank: int, world: int, step: int, steps: int | None, turns: str, out: Path | None
) -> dict[str, Any]:
    """Read one rank's slices of STORE, step by step; waits for producers, and ends when all of them have."""
    progress = click.get_current_context().obj
    ledger, count, wanted, records = Ledger(), 0, 0, 0
    began = time.perf_counter()
    metered = Metered(open_store(store), ledger)
    with _written(out) as write:
        for parts in slices(metered, rank, world, start=step, turns=tuple(filter(None, turns.split(",")))):
            wanted += sum(len(part) for part in parts)
            mine = [record for part in parts for record in unpack(part)]
            write(b"".join(record + b"\n" for record in mine))
            records += len(mine)
            count += 1
            progress(count, steps or count + 1)
            if count == steps:
                break
    facts: dict[str, Any] = {"steps": count, "records": records, "bytes": wanted, "next_step": step + count}
    facts |= {"seconds": round(time.perf_counter() - began, 2)}
    return {"read": facts, "store": _cost(ledger)}


@contextmanager
def _written(out: Path | None) -> Iterator[Callable[[bytes], Any]]:
    """Where to write; the file has its name when all of it is there."""
    if out is None:
        yield lambda data: None
        return
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            yield file.write
        aside.replace(out)
    finally:
        aside.unlink(missing_ok=True)


@command.command("serve", epilog="Example:  assay data plane serve run1 --once --grace 0")
@click.argument("store")
@click.option("--retain", default="", help="Steps of the checkpoints that are kept: 100,200. Else those marked before.")
@click.option("--grace", type=click.FloatRange(0.0), default=GRACE, show_default=True, help="Seconds for late readers.")
@click.option("--every", type=click.FloatRange(0.1), default=60.0, show_default=True, help="Seconds between rounds.")
@click.option("--once", is_flag=True, help="One round, then end.")
def serve(store: str, retain: str, grace: float, every: float, once: bool) -> dict[str, Any]:
    """Keep STORE tidy: drop the steps before the oldest checkpoint, delete what nobody can need any more.

    There is no broker to run. Any number of these may run at once, or none; Ctrl-C ends it.
    """
    plane = opened(store)
    plane.grace = grace
    if retain:
        wait(plane.retain(_steps(retain)))
    deleted: list[str] = []
    try:
        while True:
            deleted += wait(plane.reclaim())
            if once:
                break
            time.sleep(every)
    except KeyboardInterrupt:
        pass
    return _told(plane, deleted)


def _told(plane: Plane, deleted: list[str]) -> dict[str, Any]:
    state = plane.manifest.state
    facts = {"first_step": state.base, "next_step": state.next_step, "versions": plane.manifest.version + 1}
    rows = [
        {"producer": name, "batches": row.last_seq + 1, "started": row.epoch, "ended": row.done}
        for name, row in sorted(state.table.items())
    ]
    try:
        wrong = wait(plane.check())
    except StoreError as error:
        raise BadInput(f"the plane cannot be read: {error}") from error
    why = f"{len(deleted)} objects deleted. " + (
        "Every visible step can be read." if not wrong else f"{wrong[0].rule} does not hold: {wrong[0].detail}."
    )
    return {"plane": facts | {"deleted": len(deleted)}, "table": rows, "why": why, "fails": bool(wrong)}


def _steps(text: str) -> list[int]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise BadInput(f"'{text}' is no list of steps; 100,200 expected")
    return [int(part) for part in text.split(",")]


def _cost(ledger: Ledger) -> dict[str, Any]:
    return {
        "requests": ledger.requests(), "bytes_put": ledger.nbytes("put"), "bytes_got": ledger.nbytes("get"),
        "list_price_dollars": round(ledger.usd(), 6),
    }  # fmt: skip
