"""`assay compare kernels --gemm shapes.csv`: matrix products side by side on the user's own shapes."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from assay.kernels.engine import asking, machine, runner
from assay.kernels.falcongemm import KERNEL, OURS, VENDOR_HERE, contenders, cost, drawn, h200_rows
from assay.kernels.falcongemm.decision import VENDOR, choose, frontier
from assay.kernels.falcongemm.product import decide_gemm, free_bytes, needed
from assay.kernels.falcongemm.profiles import there
from assay.kernels.falcongemm.schemes import library, named
from assay.record.errors import BadInput, unreadable
from assay.record.timing import granted

DTYPES = {
    "f32": "f32", "float32": "f32", "fp32": "f32", "f64": "f64", "float64": "f64", "fp64": "f64", "bf16": "bf16",
    "bfloat16": "bf16", "f16": "f16", "float16": "f16", "fp16": "f16", "tf32": "tf32",
}  # fmt: skip
MOST = 1000  # shapes of a file
LARGEST = 1 << 24  # of a side
SHOWN = ["shape", "implementation", "seconds", "gflops", "fraction", "gain", "right"]
UNITS = {"seconds": "s", "limit": "s", "gflops": "GFLOP/s", "predicted": "s"}


class Asked(NamedTuple):
    """A line of the file."""

    m: int
    k: int
    n: int
    dtype: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, depth, columns."""
        return self.m, self.k, self.n

    def __str__(self) -> str:
        return f"{self.m} x {self.k} x {self.n} {self.dtype}"


def read_shapes(path: Path) -> list[Asked]:
    """Shapes from CSV with columns m, k, n and, if wanted, dtype; each once, in the file's order."""
    right = "CSV with columns m,k,n and perhaps dtype expected"
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            names = {str(name).strip().lower(): name for name in rows.fieldnames or ()}
            if lacking := [name for name in "mkn" if name not in names]:
                raise BadInput(f"{path}: no column {', '.join(lacking)}; {right}")
            found: dict[Asked, None] = {}
            for row in rows:
                where = f"{path}, line {rows.line_num}"
                m, k, n = (_size(row[names[name]], name, where) for name in "mkn")
                told = (row[names["dtype"]] or "f32").strip().lower() if "dtype" in names else "f32"
                if told not in DTYPES:
                    raise BadInput(f"{where}: dtype '{told}' is unknown; f32, f64, tf32, bf16 or f16")
                found[Asked(m, k, n, DTYPES[told])] = None
                if len(found) > MOST:
                    raise BadInput(f"{path}: more than {MOST} shapes: cut the file")
    except OSError as error:
        raise unreadable(path, error, right) from None
    except (UnicodeDecodeError, csv.Error):
        raise BadInput(f"{path}: not a text file; {right}") from None
    if not found:
        raise BadInput(f"{path}: no shapes; {right}")
    return list(found)


def _size(text: str | None, name: str, where: str) -> int:
    try:
        size = int(str(text).strip())
    except ValueError:
        raise BadInput(f"{where}: {name} is '{text}': a whole number expected") from None
    if not 1 <= size <= LARGEST:
        raise BadInput(f"{where}: {name} is {size}: 1 to {LARGEST} expected")
    return size


def _measured(asked: Asked, rounds: int, here: Any, vendors: bool) -> tuple[list[dict[str, Any]], Any]:
    """Every implementation on one shape, and the outcome. Where ours is the vendor's product it is not timed twice."""
    problem = drawn(asked.shape, "float32" if asked.dtype == "f32" else "float64", 0)
    ways = [one for one in contenders(asked.shape) if not (vendors and one.name == OURS)]
    outcome = runner.measure(KERNEL, problem, ways, here, rounds)
    if vendors:
        same = replace(outcome[VENDOR_HERE], implementation=OURS)
        at = 1 + outcome.records.index(outcome[VENDOR_HERE])
        outcome = replace(outcome, records=(*outcome.records[:at], same, *outcome.records[at:]))
    vendor = outcome[VENDOR_HERE].run
    flops = 2.0 * asked.m * asked.k * asked.n
    return [
        {"shape": str(asked), "gflops": flops / r.run / 1e9, "gain": vendor / r.run - 1}
        | {name: value for name, value in asking.row(r, r).items() if name not in ("prepare", "break_even")}
        for r in outcome.records
    ], outcome


def _predicted(asked: Asked, where: str) -> list[dict[str, Any]]:
    """What another machine is predicted to take, and what it took where this shape was measured there."""
    profile = there(where, asked.dtype)
    choice = choose(profile, asked.shape)
    known = next((row for row in h200_rows(asked.dtype) if (row["m"], row["k"], row["n"]) == asked.shape), None)
    best = sorted(choice.seconds, key=lambda name: choice.seconds[name])[:4]
    flops = 2.0 * asked.m * asked.k * asked.n
    return [
        {
            "shape": str(asked), "implementation": name, "seconds": choice.seconds[name],
            "gflops": flops / choice.seconds[name] / 1e9, "gain": choice.seconds[VENDOR] / choice.seconds[name] - 1,
            "chosen": name == choice.name, "measured": _known(known, name),
        }
        for name in dict.fromkeys([*best, VENDOR])
    ]  # fmt: skip


def _known(row: dict[str, Any] | None, name: str) -> float | None:
    """What a scheme took by the faster of the ways that were measured, or the vendor; None where it was not."""
    of = row["seconds_of"] if row else {}
    return min((float(s) for plan, s in of.items() if plan.rpartition(", ")[0] == name or plan == name), default=None)


def _elsewhere(asked: list[Asked], where: str) -> dict[str, Any]:
    rows = [row for one in asked for row in _predicted(one, where)]
    kinds = list(dict.fromkeys(one.dtype for one in asked))
    said = []
    for kind in kinds:
        profile = there(where, kind)
        size = frontier(profile)
        said.append(
            f"{kind}: a square product is given to a scheme from n = {size} on." if size
            else f"{kind}: no square product up to n = 65536 is given to a scheme."
        )  # fmt: skip
    chosen = sum(row["chosen"] and row["implementation"] != VENDOR for row in rows)
    why = f"Predicted from what {where} was measured to do: a scheme is taken for {chosen} of {len(asked)} shapes. "
    shown = ["shape", "implementation", "seconds", "gflops", "gain", "chosen", "measured"]
    return {"input": {"shapes": len(asked)}, "table": rows, "why": why + " ".join(said), "shown": shown, "units": UNITS}


@click.command(epilog="Example:  assay compare kernels --gemm examples/shapes.csv --longest 5")
@click.option("--gemm", "path", required=True, type=click.Path(path_type=Path), help="CSV: m,k,n and perhaps dtype.")
@click.option("--longest", type=click.FloatRange(0.001), default=2.0, show_default=True,
              help="Seconds that one product may be predicted to take; longer ones are only predicted.")  # fmt: skip
@asking.options
def command(path: Path, longest: float, rounds: int, where: str, plot: Path | None) -> dict[str, Any]:
    """Matrix products on your own shapes: does a scheme with fewer multiplications pay, and which?"""
    asked = read_shapes(path)
    if where != "here":
        machine.named(where)
        return _elsewhere(asked, where)
    here, table, said, skipped, drawn_plot = machine.here(), [], [], [], plot
    for one in asked:
        if one.dtype not in ("f32", "f64"):
            skipped.append(f"{one} (a processor has no such product: --machine h200 predicts)")
            continue
        choice = decide_gemm(one.shape, one.dtype)
        size = 4 if one.dtype == "f32" else 8
        room = size * (3 * one.m * one.n + 2 * one.m * one.k + 2 * one.k * one.n)
        room += needed(one.shape, named("winograd of winograd"), size)
        seconds = choice.seconds[VENDOR] or 2.0 * one.m * one.k * one.n / here.peaks[one.dtype]
        if room > 0.8 * free_bytes():
            skipped.append(f"{one} (takes {room / 1e9:.1f} GB, {free_bytes() / 1e9:.1f} are free)")
        elif seconds > longest:
            told = f"{choice.name} predicted" if choice.scheme else "the vendor"
            skipped.append(f"{one} (predicted {seconds:.2g} s, over --longest {longest:g}; choice: {told})")
        else:
            rows, outcome = _measured(one, rounds, here, choice.scheme is None)
            table += rows
            said.append(_verdict(one, outcome, choice.why))
            if drawn_plot is not None:
                asking.write_plot(outcome, here, cost((np.empty((one.m, one.k)), np.empty((one.k, one.n)))), drawn_plot)
                drawn_plot = None
    if not table:
        raise BadInput(f"{path}: none of the shapes could be run here: {'; '.join(skipped[:3])}")
    quiet = granted()
    if quiet < runner.QUIET:
        said.append(f"Others had this machine meanwhile ({quiet:.0%} of a core was left): times are rough.")
    why = " ".join([*said[:12], *said[12:][-1:]]).replace("%", " %").replace("  %", " %") + (
        f" Not run: {'; '.join(skipped[:8])}." if skipped else ""
    )
    facts = {"file": str(path), "shapes": len(asked), "run": len(asked) - len(skipped), "schemes": len(library())}
    wide = max(here.bandwidth)
    about = {"name": here.name, "bandwidth": here.bandwidth[wide], "measured": here.measured}
    return {"input": facts, "machine": about, "table": table, "why": why, "shown": SHOWN, "units": UNITS}


def _verdict(asked: Asked, outcome: Any, reason: str) -> str:
    """Who wins a shape, by how much, and what the decision was."""
    right = [record for record in outcome.records if record.match.right]
    wrong = [record.implementation for record in outcome.records if not record.match.right]
    first, vendor = right[0], outcome[VENDOR_HERE]
    found = None if first is vendor else runner.speedup(first, vendor)
    lead = f"{asked}: {first.implementation} is fastest"
    lead += f", {found.value:.3g} times as fast as {VENDOR_HERE}" if found else ""
    lead += "" if found or first is vendor else f", and these rounds cannot tell it from {VENDOR_HERE}"
    lost = f" Wrong results: {', '.join(wrong)}." if wrong else ""
    return f"{lead}; {OURS} decided: {reason}.{lost}"
