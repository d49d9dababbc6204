"""Recommendation traffic: who took which item when, and the ranking requests that follow from it.

A ranker is asked to order a list of candidate items for a user. The list comes from a retrieval stage, which finds
items that other takers of the user's items took: so some items are asked for together again and again, in ever new
order. :func:`read_interactions` takes a shop's own log as CSV, :func:`interactions` makes one from a catalogue with
co-purchase clusters, and :func:`ranking_requests` runs the same retrieval over either.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import unreadable
from assay.sim.random import stream

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

_COLUMNS = {
    "user": ("user", "userid", "user_id", "customer", "customer_id", "session", "session_id", "visitorid"),
    "item": ("item", "itemid", "item_id", "movieid", "movie_id", "product", "product_id", "asin"),
    "time": ("time", "timestamp", "date", "datetime"),
}


@dataclass(frozen=True)
class Interactions:
    """A log in columns, sorted by time: user `users[user[r]]` took item `items[item[r]]`."""

    user: Ints
    item: Ints
    time: Floats  # seconds
    users: tuple[str, ...]
    items: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.user)

    @property
    def popularity(self) -> NDArray[np.int64]:
        """How often each item was taken."""
        return np.bincount(self.item, minlength=len(self.items))


@dataclass(frozen=True)
class Catalogue:
    """Items with the co-purchase cluster each belongs to, how popular it is, and how long its description is."""

    cluster: Ints
    weight: Floats  # adds up to one
    tokens: Ints

    def __len__(self) -> int:
        return len(self.cluster)


@dataclass(frozen=True)
class RankingRequests:
    """Requests to rank `items[r]`, in that order in the prompt, for `user[r]`; sorted by arrival."""

    arrival: Floats
    user: Ints
    items: Ints  # one row of candidates per request

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def candidates(self) -> int:
        """Items per request."""
        return int(self.items.shape[1])


# ------------------------------------------------------------------------------------------- own data


def read_interactions(path: str | PathLike[str]) -> Interactions:
    """Read a CSV of ``user,item,time``; time as seconds or ISO 8601.

    A header may name the columns in another order and hold further ones (MovieLens' ``userId,movieId,rating,timestamp``
    reads as it is). Bad input is a ValueError of one line: file, line, what is wrong, what would be right.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "log.csv")
    ...     _ = file.write_text("user,item,time\\nann,tea,2\\nbob,tea,1\\n")
    ...     log = read_interactions(file)
    >>> log.user.tolist(), log.users, log.items
    ([1, 0], ('ann', 'bob'), ('tea',))
    """
    path = Path(path)
    names: tuple[dict[str, int], dict[str, int]] = ({}, {})
    rows: list[tuple[int, int, float]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for user, item, time in _fields(path, csv.reader(file)):
                who, what = (
                    known.setdefault(name, len(known)) for known, name in zip(names, (user, item), strict=True)
                )
                rows.append((who, what, time))
    except OSError as error:
        raise ValueError(str(unreadable(path, error, "a CSV of user,item,time expected"))) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: {error}; UTF-8 text with the columns user,item,time expected") from None
    if not rows:
        raise ValueError(f"{path}: no interactions; at least one line of user,item,time expected")
    users, items, times = (np.array(column) for column in zip(*rows, strict=True))
    order = np.argsort(times, kind="stable")
    return Interactions(
        users[order].astype(np.int32), items[order].astype(np.int32), times[order].astype(float), *map(tuple, names)
    )


def _fields(path: Path, reader: Any) -> Iterator[tuple[str, str, float]]:
    where: tuple[int, ...] = (0, 1, 2)
    for fields in reader:
        if not fields or (len(fields) == 1 and not fields[0].strip()):
            continue
        line = reader.line_num
        if line == 1 and (header := _header(fields)):
            where = header
            continue
        try:
            user, item, time = (fields[column].strip() for column in where)
        except IndexError:
            raise ValueError(f"{path}: line {line}: {len(fields)} fields; user,item,time expected") from None
        if not user or not item:
            raise ValueError(f"{path}: line {line}: empty {'item' if user else 'user'}; a name expected")
        yield user, item, _seconds(path, line, time)


def _header(fields: list[str]) -> tuple[int, ...] | None:
    names = [field.strip().lower() for field in fields]
    found = [next((names.index(n) for n in known if n in names), None) for known in _COLUMNS.values()]
    return None if None in found else tuple(f for f in found if f is not None)


def _seconds(path: Path, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        try:
            value = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError):
            value = float("nan")
    if not np.isfinite(value):
        raise ValueError(f"{path}: line {line}: time {text!r}; seconds or a date such as 2026-05-01T12:00:00 expected")
    return value


# ------------------------------------------------------------------------------------------ generated


def catalogue(items: int, clusters: int, seed: int, *, tokens: float = 100, skew: float = 0.8) -> Catalogue:
    """A catalogue whose items fall into equally large clusters; popularity is Zipf with exponent `skew`.

    Descriptions are `tokens` long on average, from half to one and a half times that.

    >>> shop = catalogue(1000, clusters=20, seed=0)
    >>> len(shop), int(shop.cluster.max()), round(float(shop.weight.sum()), 6)
    (1000, 19, 1.0)
    """
    if not 1 <= clusters <= items:
        raise ValueError(f"catalogue needs 1 <= clusters <= items, got {clusters} and {items}")
    random = stream(seed, "catalogue", items, clusters)
    cluster = random.permutation(np.arange(items) % clusters).astype(np.int32)
    weight = random.permutation(1.0 / np.arange(1, items + 1) ** skew)
    length = random.integers(int(tokens / 2), int(tokens * 1.5) + 1, items)
    return Catalogue(cluster, weight / weight.sum(), np.maximum(1, length).astype(np.int32))


def interactions(shop: Catalogue, users: int, each: int, seed: int, *, focus: float = 0.9) -> Interactions:
    """A log in which every user takes `each` items: a share `focus` from two clusters of their own, the rest anywhere.

    The two are neighbours (departments border on departments): which clusters meet is not chance.

    >>> log = interactions(catalogue(100, 5, seed=0), users=10, each=8, seed=0)
    >>> len(log), len(log.users), len(log.items)
    (80, 10, 100)
    """
    random = stream(seed, "interactions", users, each)
    clusters = int(shop.cluster.max()) + 1
    home = (random.integers(0, clusters, users)[:, None] + np.array([0, 1])) % clusters
    own = random.random((users, each)) < focus
    which = home[np.arange(users)[:, None], random.integers(0, 2, (users, each))]
    taken = random.choice(len(shop), (users, each), p=shop.weight)
    for cluster in range(clusters):
        members = np.flatnonzero(shop.cluster == cluster)
        here = own & (which == cluster)
        taken[here] = random.choice(members, int(here.sum()), p=shop.weight[members] / shop.weight[members].sum())
    time = np.sort(random.random(users * each)) * 86_400.0
    order = random.permutation(users * each)
    return Interactions(
        (order // each).astype(np.int32), taken.ravel()[order].astype(np.int32), time,
        tuple(f"user-{u}" for u in range(users)), tuple(f"item-{i}" for i in range(len(shop))),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- requests


def ranking_requests(
    log: Interactions, count: int, candidates: int, rate: float, seed: int, *, explore: float = 0.1, skew: float = 0.6
) -> RankingRequests:
    """Poisson requests of returning users, whose candidates a two-step walk over the log finds.

    The walk goes from an item of the user to another taker of it and on to one of that taker's items; the items that
    most walks end at are the candidates, as in co-visitation retrieval, but for a share `explore` drawn from the whole
    log. How often a user returns is Zipf with exponent `skew`. The order within a request is random: rankers shuffle
    against position bias.

    >>> log = interactions(catalogue(100, 5, seed=0), users=50, each=10, seed=0)
    >>> asked = ranking_requests(log, count=20, candidates=8, rate=2.0, seed=0)
    >>> asked.items.shape, len(set(asked.items[0].tolist()))
    ((20, 8), 8)
    """
    distinct = len(np.unique(log.item))
    if not 1 <= candidates <= distinct:
        raise ValueError(f"{candidates} candidates asked for, but the log has {distinct} different items")
    random = stream(seed, "ranking-requests", count, candidates)
    arrival = np.cumsum(random.exponential(1.0 / rate, count))
    present = np.unique(log.user)
    returning = random.permutation(1.0 / np.arange(1, len(present) + 1) ** skew)
    user = random.choice(present, count, p=returning / returning.sum()).astype(np.int32)
    by_user, by_item = _Groups(log.user, log.item, len(log.users)), _Groups(log.item, log.user, len(log.items))
    start = by_user.draw(np.repeat(user[:, None], 12 * candidates, axis=1), random)
    end = by_user.draw(by_item.draw(start, random), random)
    anywhere = log.item[random.integers(0, len(log), (count, round(explore * candidates)))]
    chosen = [_candidates(*rows, candidates, log, random) for rows in zip(anywhere, end, strict=True)]
    return RankingRequests(arrival, user, np.array([random.permutation(row) for row in chosen], np.int32))


class _Groups:
    """The values of each key, to draw from."""

    def __init__(self, keys: Ints, values: Ints, n: int) -> None:
        self.values = values[np.argsort(keys, kind="stable")]
        self.stop = np.cumsum(np.bincount(keys, minlength=n))
        self.size = np.bincount(keys, minlength=n)

    def draw(self, keys: Ints, random: np.random.Generator) -> Ints:
        """One value for each key, uniformly among that key's."""
        offset = (random.random(keys.shape) * self.size[keys]).astype(np.int64)
        drawn: Ints = self.values[self.stop[keys] - 1 - offset]
        return drawn


def _candidates(anywhere: Ints, ends: Ints, k: int, log: Interactions, random: np.random.Generator) -> Ints:
    """k different items: the explored ones, then the walks' ends by how many end there, then any others."""
    items, times = np.unique(ends, return_counts=True)
    ranked = items[np.argsort(-(times + random.random(len(items))))]  # the fraction breaks ties
    row = np.concatenate([anywhere, ranked])
    _, first = np.unique(row, return_index=True)
    chosen = row[np.sort(first)][:k]
    if len(chosen) < k:
        others = np.setdiff1d(log.item, chosen)
        chosen = np.concatenate([chosen, random.permutation(others)[: k - len(chosen)]])
    return chosen
