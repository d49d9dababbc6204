"""What GPU nodes a cloud offers, at which price, and how many of them, over time.

A configuration is a kind of node that is rented whole: a device, how many of them, and a region. Prices are in US
dollars per node and hour, and both series are steps: a value holds until the next. A user's own series is a CSV file
with the columns `time` (seconds), `config`, `price`, `available`. Generated series are for when there is none: prices
revert to the list price, availability moves with what others rent, and now and then a kind of node is sold out.

>>> market = generate(["1xl40s@us", "4xh100@us", "4xh100@eu"], seconds=3600, seed=1)
>>> offer = market.at(1800)
>>> [config.name for config in offer.configs], len(offer.price), offer.available.dtype.kind
(['1xl40s@us', '4xh100@us', '4xh100@eu'], 3, 'i')
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.record.errors import BadInput, unreadable
from assay.sim.hardware import device
from assay.sim.random import stream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COLUMNS = ("time", "config", "price", "available")
REGIONAL = 0.15  # list prices differ by up to this share between regions (assumed)


@dataclass(frozen=True, order=True)
class Config:
    """A kind of node: so many of a device, in a region.

    >>> Config.read("4xh100@us-east").gpus, Config("l4", 1).name
    (4, '1xl4')
    """

    device: str
    gpus: int
    region: str = ""

    @classmethod
    def read(cls, text: str) -> Config:
        """From `4xh100@us-east`; the region may be missing.

        Raises:
            BadInput: not of this form, or no such device.
        """
        found = re.fullmatch(r"(\d{1,3})x([\w.-]+)(?:@([\w.-]+))?", text.strip())
        if not found or int(found[1]) < 1:
            raise BadInput(f"configuration {text!r} should be count x device @ region, such as 4xh100@us-east")
        return cls(device(found[2]).name, int(found[1]), found[3] or "")

    @property
    def name(self) -> str:
        """As one would write it."""
        return f"{self.gpus}x{self.device}" + (f"@{self.region}" if self.region else "")

    @property
    def list_price(self) -> float:
        """US dollars per hour by the device's record, wherever it stands."""
        return self.gpus * device(self.device).usd_per_hour


@dataclass(frozen=True)
class Offer:
    """The market at one moment."""

    configs: tuple[Config, ...]
    price: Floats  # US dollars per node and hour
    available: Ints  # nodes that one could hold in all, those held already included

    def scarcer(self, factor: float) -> Offer:
        """The same market with this share of its nodes, rounded down.

        >>> Offer((Config("l4", 1),), np.ones(1), np.array([5])).scarcer(0.5).available.tolist()
        [2]
        """
        return replace(self, available=np.floor(self.available * factor + 1e-9).astype(np.int64))


@dataclass(frozen=True)
class Market:
    """Prices and availability over time: row i holds from `times[i]` to the next."""

    configs: tuple[Config, ...]
    times: Floats
    price: Floats  # [times, configs]
    available: Ints

    def at(self, time: float) -> Offer:
        """What is offered at a time; before the first row, what the first row says."""
        row = max(int(np.searchsorted(self.times, time, side="right")) - 1, 0)
        return Offer(self.configs, self.price[row], self.available[row])

    def table(self) -> pl.DataFrame:
        """The series as the rows of a CSV file.

        >>> generate(["1xl4"], seconds=600).table().columns
        ['time', 'config', 'price', 'available']
        """
        steps, kinds = self.price.shape
        return pl.DataFrame(
            {
                "time": np.repeat(self.times, kinds),
                "config": [config.name for config in self.configs] * steps,
                "price": self.price.ravel(),
                "available": self.available.ravel(),
            }
        )


def generate(
    configs: Sequence[Config | str],
    *,
    seconds: float = 3600.0,
    step: float = 300.0,
    gpus: float = 32.0,
    volatility: float = 0.15,
    churn: float = 0.3,
    sold_out: float = 0.05,
    seed: int = 0,
) -> Market:
    """A market nobody saw, with the three things that markets do.

    Args:
        configs: kinds of nodes.
        seconds: length of the series.
        step: time between two values.
        gpus: GPUs of each configuration that are there on average; a configuration has gpus / its size nodes.
        volatility: of the logarithm of price over list price, in the long run.
        churn: relative standard deviation of availability; half of its variance is common to a device.
        sold_out: chance that a configuration has nothing at a step, in the long run; it lasts four steps on average.
        seed: of the series.

    >>> generate(["8xh100"], gpus=16, churn=0.0, sold_out=0.0).available[0].tolist()
    [2]
    """
    kinds = tuple(config if isinstance(config, Config) else Config.read(config) for config in configs)
    if not kinds or len(set(kinds)) < len(kinds):
        raise BadInput("a market needs configurations, each once")
    count = max(int(np.ceil(seconds / step)), 1)
    own = np.stack([_wander(count, stream(seed, "market", "own", k.name)) for k in kinds], axis=1)
    common = {d: _wander(count, stream(seed, "market", "device", d)) for d in {k.device for k in kinds}}
    shared = np.stack([common[k.device] for k in kinds], axis=1)
    moves = np.stack([_wander(count, stream(seed, "market", "price", k.name)) for k in kinds], axis=1)
    level = np.array([_regional(k.region, seed) * k.list_price for k in kinds])
    price = level * np.exp(volatility * (moves - 0.5 * volatility))
    mean = gpus / np.array([k.gpus for k in kinds], np.float64)
    nodes = np.round(mean * np.maximum(1 + churn * (own + shared) / np.sqrt(2), 0.0))
    gone = np.stack([_outages(count, sold_out, stream(seed, "market", "sold out", k.name)) for k in kinds], axis=1)
    return Market(kinds, step * np.arange(count, dtype=np.float64), price, np.where(gone, 0, nodes).astype(np.int64))


def _wander(count: int, random: np.random.Generator, keep: float = 0.9) -> Floats:
    """A path of mean 0 and variance 1 that forgets a tenth of itself at every step (AR(1), stationary)."""
    noise = random.standard_normal(count)
    path = np.empty(count)
    path[0] = noise[0]
    for i in range(1, count):
        path[i] = keep * path[i - 1] + np.sqrt(1 - keep**2) * noise[i]
    return path


def _outages(count: int, share: float, random: np.random.Generator, length: float = 4.0) -> NDArray[np.bool_]:
    """Stretches of geometric length that cover this share of the steps in the long run."""
    if not 0.0 <= share < 0.8:  # beyond it, none would have to end within a step
        raise BadInput(f"sold_out is {share:g}, should be from 0 to 0.8")
    draw = random.random(count)
    begin = share / (1 - share) / length
    gone, path = draw[0] < share, np.empty(count, np.bool_)
    for i in range(count):
        path[i] = gone
        gone = draw[i] >= 1 / length if gone else draw[i] < begin
    return path


def _regional(region: str, seed: int) -> float:
    return 1.0 + REGIONAL * float(stream(seed, "market", "region", region).uniform(-1, 1)) if region else 1.0


def read(path: str | os.PathLike[str]) -> Market:
    """A market from a CSV file with the columns time, config, price, available, in any order of rows.

    A configuration keeps its last row until its next one, and is not offered before its first.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("time,config,price,available\\n0,1xl4@us,0.6,5\\n0,4xh100@us,11,2\\n300,1xl4@us,0.7,3\\n")
    ...     file.flush()
    ...     read(file.name).at(400).available.tolist()
    [3, 2]

    Raises:
        BadInput: the file, and the row where something cannot be.
    """
    try:
        table = pl.read_csv(Path(path).read_bytes(), infer_schema_length=None)
    except OSError as error:
        raise unreadable(path, error) from error
    except pl.exceptions.PolarsError as error:
        why = str(error).splitlines()[0].partition(" (")[0]
        raise BadInput(f"{path}: {why}; a CSV with the columns time, config, price, available expected") from error
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise BadInput(f"{path}: no column {', '.join(missing)}; it should have {', '.join(COLUMNS)}")
    rows = []
    for line, (time, config, price, available) in enumerate(table.select(COLUMNS).iter_rows(), 2):
        rows.append(_row(f"{path} line {line}", time, config, price, available))
    if not rows:
        raise BadInput(f"{path}: no rows")
    kinds = tuple(dict.fromkeys(config for _, config, _, _ in rows))
    times = np.unique([time for time, _, _, _ in rows])
    prices, nodes = np.full((len(times), len(kinds)), np.nan), np.full((len(times), len(kinds)), -1, np.int64)
    for time, config, price, available in rows:
        at = int(np.searchsorted(times, time)), kinds.index(config)
        prices[at], nodes[at] = price, available
    for i in range(1, len(times)):
        known = nodes[i] >= 0
        prices[i], nodes[i] = np.where(known, prices[i], prices[i - 1]), np.where(known, nodes[i], nodes[i - 1])
    listed = np.array([config.list_price for config in kinds])
    return Market(kinds, times, np.where(np.isnan(prices), listed, prices), np.maximum(nodes, 0))


def _row(
    where: str, time: object, config: object, price: object, available: object
) -> tuple[float, Config, float, int]:
    try:
        when, usd, nodes = float(str(time)), float(str(price)), float(str(available))
    except ValueError:
        raise BadInput(f"{where}: time, price and available should be numbers") from None
    if not (np.isfinite(when) and np.isfinite(usd) and usd >= 0 and nodes >= 0 and nodes == int(nodes)):
        raise BadInput(f"{where}: price should be at least 0 and available a whole number, not {price} and {available}")
    try:
        return when, Config.read(str(config)), usd, int(nodes)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
