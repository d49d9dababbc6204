"""`assay compare kernels --divide pairs.csv`: a user's own pairs, divided beside Python's integers and GMP's."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from assay.kernels.bigint_div import divide
from assay.kernels.bigint_div.dividing import plain
from assay.kernels.engine import asking, cuda, machine, runner
from assay.kernels.interface import Cost, Implementation, Kernel, Match
from assay.record.errors import BadInput, unreadable

Pairs = tuple[list[int], list[int]]
WANTED = "two whole numbers, decimal or with 0x before them"
LONGEST = 1 << 26  # bits: what nobody would wait for

KERNEL = Kernel(
    "division",
    lambda p: [divmod(u, v) for u, v in zip(*p, strict=True)],
    lambda p, out, right: Match(list(zip(*out, strict=True)) == right),
    lambda p: Cost(bytes=sum(2 * (u.bit_length() + v.bit_length()) / 8 for u, v in zip(*p, strict=True))),
)


def number(text: Any) -> int:
    """A whole number as it stands in a file: decimal or hexadecimal.

    >>> number(" -0xff"), number("1000"), number(7)
    (-255, 1000, 7)
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if not isinstance(text, str):
        raise ValueError
    plain = text.strip().lower()
    if plain.lstrip("+-").startswith("0x"):
        return int(plain, 16)
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)  # Python refuses decimals of more than 4,300 digits otherwise
    try:
        return int(plain, 10)
    finally:
        sys.set_int_max_str_digits(limit)


def _fields(line: str, suffix: str) -> Any:
    if suffix != ".jsonl":
        return line.replace(",", " ").replace(";", " ").split()
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        row = json.loads(line)
    finally:
        sys.set_int_max_str_digits(limit)
    return [row["u"], row["v"]] if isinstance(row, dict) else row


def read_pairs(path: Path) -> Pairs:
    """Pairs from .csv or .txt (two numbers a line; a .csv may begin with names) or .jsonl (a list, or u and v)."""
    if path.suffix not in (".csv", ".txt", ".jsonl"):
        raise BadInput(f"{path}: give pairs as .csv, .txt or .jsonl")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not text; {WANTED} a line expected") from None
    us, vs = [], []
    for at, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            fields = _fields(line, path.suffix)
            if at == 1 and path.suffix == ".csv" and not any(c.isdigit() for c in line):
                continue
            u, v = map(number, fields)
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{path}:{at}: {WANTED} expected") from None
        if v == 0:
            raise BadInput(f"{path}:{at}: the divisor is zero")
        if max(u.bit_length(), v.bit_length()) > LONGEST:
            raise BadInput(f"{path}:{at}: a number of more than {LONGEST} bits")
        us.append(u)
        vs.append(v)
    if not us:
        raise BadInput(f"{path}: no pair in it; {WANTED} a line expected")
    return us, vs


def _gmp(pairs: Pairs) -> Any:
    import gmpy2

    return [gmpy2.mpz(u) for u in pairs[0]], [gmpy2.mpz(v) for v in pairs[1]]


def _gmp_run(pairs: Any) -> Any:
    import gmpy2

    return tuple(zip(*(gmpy2.f_divmod(u, v) for u, v in zip(*pairs, strict=True)), strict=True))


def ways() -> list[Implementation]:
    """Ours as it chooses itself and, where there is one, on the GPU; Python's integers; GMP's."""
    return [
        Implementation("bigint-div", "numba", lambda p: p, lambda p: divide(p[0], p[1])),
        Implementation("bigint-div gpu", "cuda", lambda p: p, lambda p: divide(p[0], p[1], "gpu"), cuda.missing),
        Implementation(
            "python", "python", lambda p: p, lambda p: tuple(zip(*map(divmod, *p), strict=True))
        ),
        Implementation("gmpy2", "c", _gmp, _gmp_run, lambda: "" if find_spec("gmpy2") else "gmpy2 is not installed"),
    ]  # fmt: skip


@click.command(epilog="Example:  assay compare kernels --divide examples/pairs.csv --rounds 9")
@click.option("--divide", "path", required=True, type=click.Path(path_type=Path), help="Pairs as .csv, .txt or .jsonl.")
@asking.options
def command(path: Path, rounds: int, where: str, plot: Path | None) -> dict[str, Any]:
    """Quotients and remainders of your own pairs: by a whole shifted inverse, by Python and by GMP."""
    pairs = read_pairs(path)
    here = machine.here()
    outcome = runner.measure(KERNEL, pairs, ways(), here, rounds)
    bits = [max(u.bit_length(), v.bit_length()) for u, v in zip(*pairs, strict=True)]
    facts = {"file": str(path), "pairs": len(bits), "longest": max(bits), "mean_bits": round(sum(bits) / len(bits))}
    told = asking.answer(outcome, here, KERNEL.cost(pairs), facts, "bigint-div", where, plot)
    if left := sum(map(plain, *pairs)):
        told["why"] += (
            f" {left} of {len(bits)} pairs are so short that bigint-div leaves them to Python's own division, which is "
            "faster below a dividend of about 2^15 bits and half as long a divisor."
        )
    return told
