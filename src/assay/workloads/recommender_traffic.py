"""Traffic of a generative recommender: users who come back within a session, and the candidates each request scores.

A request names a user, the length of the user's history in tokens, and the groups of items that retrieval proposed
(items retrieved together lie together, so a group is the unit in which embeddings are fetched). Two kinds of users:
*loyal* ones have long histories and like what their community likes; *casual* ones have short histories and see a wide
choice. Popularity follows Zipf's law with a drifting head: every now and then a new group enters at rank one and all
others age by one. Three regimes:

- ``steady``: a constant rate and mix;
- ``trend``: many casual users by day give way to fewer, loyal ones in the evening and come back, slowly;
- ``burst``: a steady base, and now and then a notification that brings loyal users back, or a sale that draws casual
  ones, all at once.

>>> traffic = generate("steady", nodes=1, duration=20.0, seed=0)
>>> traffic.groups.shape[1], bool((np.diff(traffic.arrival) >= 0).all())
(16, True)
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput, unreadable
from assay.sim.random import stream

REGIMES = ("steady", "trend", "burst")
Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Shape:
    """What the traffic is like, per node of the fleet it is made for."""

    rate: float = 40.0  # requests per second and node
    visits: float = 6.0  # requests of a session, on average
    pause: float = 5.0  # seconds between two requests of a session, on average
    loyal: int = 1500  # users per node
    casual: int = 6000
    loyal_history: float = 4000.0  # tokens, median
    casual_history: float = 500.0
    longest_history: int = 12_000
    engaged: float = 6.0  # tokens a visit adds to the history, on average
    catalogue: int = 20_000  # groups of items
    communities: int = 40
    per_request: int = 16  # groups a request scores
    skew: float = 0.8  # Zipf exponent of the whole catalogue
    community_skew: float = 0.9
    loyal_focus: float = 0.7  # share of candidates from the user's own community
    casual_focus: float = 0.2
    drift: float = 1.0  # new groups per second that enter at rank one

    def __post_init__(self) -> None:
        if self.catalogue % self.communities:
            raise ValueError(f"{self.catalogue} groups do not divide into {self.communities} communities")


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests in order of arrival. `history` counts the tokens known when the request arrives."""

    arrival: Floats
    user: Ints
    history: Ints
    groups: Ints  # one row a request
    users: int
    catalogue: int
    duration: float

    def __len__(self) -> int:
        return len(self.arrival)


@dataclass(frozen=True, eq=False)
class Course:
    """How the rate of new sessions (relative) and the share of loyal users among them go, second by second."""

    rate: Floats
    loyal: Floats


def course(regime: str, duration: float, seed: int, warmup: float = 0.0) -> Course:
    """The course of a regime. During `warmup` the rate is flat: caches fill.

    >>> course("trend", 100.0, seed=0).loyal.round(2).tolist()[::50]
    [0.05, 0.95]
    """
    t = np.arange(int(np.ceil(duration)), dtype=float)
    flat = np.ones(len(t))
    if regime == "steady":
        return Course(flat, 0.5 * flat)
    if regime == "trend":
        phase = np.clip((t - warmup) / max(duration - warmup, 1.0), 0.0, 1.0)
        evening = 0.5 - 0.5 * np.cos(2 * np.pi * phase)
        return Course(2.0 - 1.1 * evening, 0.05 + 0.9 * evening)
    if regime != "burst":
        raise ValueError(f"no regime '{regime}'; there are {', '.join(REGIMES)}")
    random = stream(seed, "recommender-traffic", "bursts", int(duration))
    rate, loyal, notification = flat.copy(), 0.5 * flat, bool(random.random() < 0.5)
    start = warmup + random.uniform(5, 25)
    while start < duration:
        length, notification = random.uniform(20, 40), not notification  # the two kinds take turns
        during = (t >= start) & (t < start + length)
        rate[during] = random.uniform(1.2, 1.4) if notification else random.uniform(2.2, 2.6)
        loyal[during] = 0.9 if notification else 0.05
        start += length + random.uniform(25, 50)
    return Course(rate, loyal)


def zipf(random: np.random.Generator, n: int, skew: float, size: int) -> NDArray[np.int64]:
    """Ranks 0..n-1 whose frequency falls as rank to the power -skew (the bounded Pareto law, rounded down).

    >>> ranks = zipf(stream(0, "example"), 1000, 0.8, 10_000)
    >>> int(ranks.min()), int(ranks.max()) < 1000, bool((ranks < 10).mean() > 10 * (ranks >= 990).mean())
    (0, True, True)
    """
    power = 1.0 - skew
    top = (n + 1.0) ** power - 1.0
    ranks: NDArray[np.int64] = ((random.random(size) * top + 1.0) ** (1.0 / power)).astype(np.int64) - 1
    return np.minimum(ranks, n - 1)


def generate(
    regime: str, nodes: int, duration: float, seed: int, *, warmup: float = 0.0, shape: Shape | None = None
) -> Traffic:
    """All requests of one regime for a fleet of `nodes`.

    >>> a, b = (generate("burst", 1, 30.0, seed=4) for _ in range(2))
    >>> bool((a.groups == b.groups).all()), len(a) > 900
    (True, True)
    """
    shape = shape or Shape()
    way = course(regime, duration, seed, warmup)
    random = stream(seed, "recommender-traffic", regime, nodes, int(duration))
    start, user = _sessions(random, way, shape, nodes)
    visits = random.geometric(1 / shape.visits, len(start))
    session = np.repeat(np.arange(len(start)), visits)
    pauses = random.exponential(shape.pause, len(session))
    first = np.cumsum(visits) - visits
    pauses[first] = 0.0
    since = np.cumsum(pauses)
    arrival = start[session] + since - since[first][session]
    order = np.argsort(arrival, kind="stable")
    order = order[(arrival[order] >= 0.0) & (arrival[order] < duration)]
    arrival, who = arrival[order], user[session[order]]
    is_loyal = who < shape.loyal * nodes
    return Traffic(
        arrival,
        who.astype(np.int32),
        _histories(random, who, is_loyal, shape, nodes),
        _candidates(random, arrival, who, is_loyal, shape),
        users=(shape.loyal + shape.casual) * nodes,
        catalogue=shape.catalogue,
        duration=duration,
    )


def _sessions(random: np.random.Generator, way: Course, shape: Shape, nodes: int) -> tuple[Floats, NDArray[np.int64]]:
    """When sessions start and whose they are; loyal users have the lower numbers.

    Sessions that began before time zero are there too, so that the rate is level from the first second.
    """
    lead = int(4 * shape.visits * shape.pause)
    rate, share = (np.r_[np.full(lead, values[0]), values] for values in (way.rate, way.loyal))
    counts = random.poisson(rate * shape.rate * nodes / shape.visits)
    start = np.repeat(np.arange(len(counts)) - lead, counts) + random.random(counts.sum())
    loyal = random.random(len(start)) < np.repeat(share, counts)
    low = np.where(loyal, 0, shape.loyal * nodes)
    many = np.where(loyal, shape.loyal, shape.casual) * nodes
    return start, low + (random.random(len(start)) * many).astype(np.int64)


def _histories(
    random: np.random.Generator, who: NDArray[np.int64], is_loyal: NDArray[np.bool_], shape: Shape, nodes: int
) -> Ints:
    """Each user's first length is lognormal; each visit adds some tokens."""
    users = (shape.loyal + shape.casual) * nodes
    loyal = np.arange(users) < shape.loyal * nodes
    median, spread = np.where(loyal, shape.loyal_history, shape.casual_history), np.where(loyal, 0.4, 0.6)
    begin = np.minimum(median * np.exp(spread * random.standard_normal(users)), shape.longest_history)
    added = random.poisson(shape.engaged, len(who))
    by_user = np.argsort(who, kind="stable")  # arrival order is kept within a user
    total = np.cumsum(added[by_user])
    fresh = np.r_[True, np.diff(who[by_user]) != 0] if len(who) else np.zeros(0, bool)
    offset = np.maximum.accumulate(np.where(fresh, np.r_[0, total[:-1]] if len(who) else 0, 0))
    history = np.empty(len(who), np.int64)
    history[by_user] = total - offset
    tokens: Ints = (begin[who] + history).astype(np.int32)
    return tokens


def _candidates(
    random: np.random.Generator, arrival: Floats, who: NDArray[np.int64], is_loyal: NDArray[np.bool_], shape: Shape
) -> Ints:
    """Some groups from the user's community, the rest from the whole catalogue; both have a drifting head."""
    n, k, size = len(who), shape.per_request, shape.catalogue // shape.communities
    layout = random.permutation(shape.catalogue)  # rank order of the catalogue; a community is a stretch of another one
    members = random.permutation(shape.catalogue).reshape(shape.communities, size)
    age = np.repeat((arrival * shape.drift).astype(np.int64), k)
    own = random.random(n * k) < np.repeat(np.where(is_loyal, shape.loyal_focus, shape.casual_focus), k)
    community = np.repeat(who % shape.communities, k)
    wide = layout[(zipf(random, shape.catalogue, shape.skew, n * k) - age) % shape.catalogue]
    near = members[community, (zipf(random, size, shape.community_skew, n * k) - age // shape.communities) % size]
    groups: Ints = np.where(own, near, wide).astype(np.int32).reshape(n, k)
    return groups


# ------------------------------------------------------------------------------------------- own data

COLUMNS = ("time", "user", "history", "groups")


def read(path: str | os.PathLike[str]) -> Traffic:
    """Traffic from a CSV of time (seconds), user, history (tokens) and groups (names apart by spaces), in any order.

    Every request must score equally many groups. The first request comes at zero.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "mine.csv")
    ...     _ = file.write_text("time,user,history,groups\\n7.5,ann,900,tea nuts\\n7,bob,40,tea ice\\n")
    ...     traffic = read(file)
    >>> traffic.arrival.tolist(), traffic.history.tolist(), traffic.users, traffic.catalogue
    ([0.0, 0.5], [40, 900], 2, 3)

    Raises:
        BadInput: a line that is no such request; the message has its number.
    """
    right = "time,user,history,groups such as 0.25,ann,1200,17 4 256 expected"
    rows: list[tuple[float, str, int, list[str]]] = []
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise BadInput(f"{path}: no column {', '.join(missing)}; {right}")
            for line in reader:
                rows.append(_request(line, f"{path}, line {reader.line_num}", right))
                if len(rows[-1][3]) != len(rows[0][3]):
                    counts = f"{len(rows[-1][3])} groups where the first has {len(rows[0][3])}"
                    raise BadInput(f"{path}, line {reader.line_num}: {counts}; all requests must score equally many")
    except OSError as error:
        raise unreadable(path, error, right) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: {error}; UTF-8 text with {right}") from error
    if not rows:
        raise BadInput(f"{path}: no request; {right}")
    rows.sort(key=lambda row: row[0])
    users = {name: number for number, name in enumerate(dict.fromkeys(row[1] for row in rows))}
    items = {name: number for number, name in enumerate(dict.fromkeys(name for row in rows for name in row[3]))}
    arrival = np.array([row[0] for row in rows]) - rows[0][0]
    return Traffic(
        arrival, np.array([users[row[1]] for row in rows], np.int32), np.array([row[2] for row in rows], np.int32),
        np.array([[items[name] for name in row[3]] for row in rows], np.int32), users=len(users),
        catalogue=len(items), duration=float(arrival[-1]) + 1.0,
    )  # fmt: skip


def _request(line: dict[str, str], where: str, right: str) -> tuple[float, str, int, list[str]]:
    try:
        time, history, groups = float(line["time"]), int(line["history"]), line["groups"].split()
    except (TypeError, ValueError, AttributeError):
        raise BadInput(f"{where}: {right}") from None
    if not np.isfinite(time) or not 0 < history < 2**31 or not groups:
        raise BadInput(f"{where}: a time, at least a token of history and a group are needed; {right}")
    return time, line["user"], history, groups
