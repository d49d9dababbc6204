"""Why the paper's gain appears on one GPU and not on another: two bounds, bytes and multiply-adds.

Every latent is read once (1152 bytes in half precision) and multiplied with each row or column of a tile twice (576 and
512 multiply-adds). With 16 heads that is 30 FLOP a byte, with heads filled up to 64 rows 121. A GPU whose peak is 37
times its bandwidth (an H20) must wait for the products of the second; one whose peak is 175 times (an H200) waits for
its memory either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from assay.kernels.engine import elsewhere
from assay.sim import hardware

BYTES = 576 * 2  # a token's latent in half precision
FLOPS = 2 * (576 + 512)  # a token and a row of a tile


@dataclass(frozen=True)
class Roof:
    """What a GPU can do: bytes and operations a second, and where the numbers come from."""

    name: str
    bandwidth: float
    peak: float
    source: str

    @property
    def ridge(self) -> float:
        """Operations a byte below which memory bounds.

        >>> Roof("h20", 4e12, 148e12, "").ridge
        37.0
        """
        return self.peak / self.bandwidth


@cache
def roof(name: str) -> Roof:
    """The H200 as it was measured; others by their data sheets.

    >>> round(roof("h20").ridge), roof("h200").ridge > 150
    (37, True)
    """
    if name in elsewhere.MACHINES:
        found = elsewhere.machine(name)
        return Roof(name, found.bandwidth[0], found.peaks["bf16"], found.measured)
    sheet = hardware.device(name)
    return Roof(name, sheet.mem_bw, sheet.peak_flops["bf16"], "data sheet")


def rows_of(form: str, heads: int) -> int:
    """Rows or columns that are multiplied: heads in whole tiles of 64, or of 8 where they are columns.

    >>> rows_of("padded", 16), rows_of("transposed", 16), rows_of("transposed", 5), rows_of("padded", 128)
    (64, 16, 8, 128)
    """
    tile = {"padded": 64, "transposed": 8, "narrow": 16}[form]
    return -(-heads // tile) * tile


def intensity(form: str, heads: int) -> float:
    """Operations that are executed for each byte read.

    >>> round(intensity("transposed", 16)), round(intensity("padded", 16))
    (30, 121)
    """
    return rows_of(form, heads) * FLOPS / BYTES


def seconds(form: str, heads: int, on: Roof, memory: float = 1.0, products: float = 1.0) -> tuple[float, str]:
    """What a token takes by the longer of two bounds, and which; each at the share of its roof that kernels attain."""
    bounds = {
        "memory": BYTES / (on.bandwidth * memory),
        "products": rows_of(form, heads) * FLOPS / (on.peak * products),
    }
    by = max(bounds, key=lambda name: bounds[name])
    return bounds[by], by


def gain(heads: int, on: Roof, memory: float = 1.0, products: float = 1.0) -> float:
    """How many times as long the padded form takes as the transposed one, by the two bounds.

    >>> round(gain(16, roof("h20")), 2), gain(16, roof("h200"))
    (3.27, 1.0)
    """
    return seconds("padded", heads, on, memory, products)[0] / seconds("transposed", heads, on, memory, products)[0]


def reason(heads: int, on: Roof) -> str:
    """The two bounds in a sentence.

    >>> reason(16, roof("h20"))
    'H20: 121 FLOP a byte padded and 30 transposed, 37 at its ridge: products bound the padded form, 3.3 times at most'
    """
    by = seconds("padded", heads, on)[1]
    told = f"{on.name.upper()}: {intensity('padded', heads):.0f} FLOP a byte padded and "
    told += f"{intensity('transposed', heads):.0f} transposed, {on.ridge:.0f} at its ridge: "
    if by == "memory":
        return told + "memory bounds both forms, so padding would cost nothing"
    return told + f"products bound the padded form, {gain(heads, on):.2g} times at most"
