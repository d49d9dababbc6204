"""Ballots: rankings of candidates by voters, from PrefLib's files or from a model of an electorate.

:func:`read_ballots` takes PrefLib's ordinal files: ``.soc`` and ``.soi`` (strict orders, complete and incomplete),
``.toc`` and ``.toi`` (with ties). A line ``3: 2,{1,4}`` says that three voters put 2 first, then 1 and 4, equal.
Rules here want strict and complete rankings, so each voter's ties, and the candidates it left out (at the end), are put
in a random order of its own; ``completed`` says how many ballots that touched.

>>> electorate = mallows(5, [2, 0, 1], dispersion=0.0)
>>> electorate.orders.tolist()[0], electorate.positions.tolist()[0]
([2, 0, 1], [1, 2, 0])

- Mattei, Walsh, "PrefLib: a library of preference data", ADT 2013 (the formats).
- Mallows, "Non-null ranking models", Biometrika 1957; Plackett 1975 and Luce 1959.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from assay.sim.random import stream

Orders = npt.NDArray[np.int16]

MOST_CANDIDATES, MOST_VOTERS = 1000, 10**7
_SUFFIXES = (".soc", ".soi", ".toc", ".toi")
_FACT = re.compile(r"#\s*([A-Z][A-Z ]*?)(?:\s+(\d+))?\s*:\s*(.*)")


@dataclass(frozen=True, eq=False)
class Profile:
    """Voters' strict rankings: ``orders[v, place]`` is the candidate that voter v puts there, best first."""

    names: tuple[str, ...]
    orders: Orders
    completed: int = 0
    """Ballots whose ties or gaps were filled at random."""

    @property
    def voters(self) -> int:
        """How many voters there are."""
        return len(self.orders)

    @cached_property
    def positions(self) -> Orders:
        """``positions[v, c]`` is the place of candidate c on voter v's ballot, from 0."""
        places = np.empty_like(self.orders)
        np.put_along_axis(places, self.orders, np.arange(len(self.names), dtype=np.int16)[None, :], axis=1)
        return places

    def without(self, candidate: int) -> Profile:
        """The same voters when a candidate has left."""
        kept = self.orders[self.orders != candidate].reshape(self.voters, -1)
        names = self.names[:candidate] + self.names[candidate + 1 :]
        return Profile(names, (kept - (kept > candidate)).astype(np.int16), self.completed)


# ----------------------------------------------------------------------------------------- from a file


def read_ballots(path: str | PathLike[str], seed: int = 0) -> Profile:
    """Read a PrefLib file of rankings.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "election.soi")
    ...     head = "# NUMBER ALTERNATIVES: 3\\n# ALTERNATIVE NAME 1: Ada\\n"
    ...     _ = file.write_text(head + "2: 3,1,2\\n1: 2\\n")
    ...     profile = read_ballots(file)
    >>> profile.names, profile.voters, profile.completed, profile.orders[0].tolist()
    (('Ada', '2', '3'), 3, 1, [2, 0, 1])
    """
    file = Path(path)
    if file.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"{file.name}: not a file of rankings; one of {', '.join(_SUFFIXES)} expected")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{file.name}: not a text file in UTF-8") from None
    names, first = _names(file.name, lines)
    ballots = []
    for number, line in enumerate(lines[first:], first + 1):
        if line.strip() and not line.startswith("#"):
            ballots.append(_ballot(line, len(names), f"{file.name}, line {number}"))
    if not ballots:
        raise ValueError(f"{file.name}: no ballots; lines such as '3: 2,1' expected")
    voters = sum(count for count, _ in ballots)
    if voters > MOST_VOTERS:
        raise ValueError(f"{file.name}: {voters} voters; at most {MOST_VOTERS} expected")
    return _fill(names, ballots, seed)


def _names(name: str, lines: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """The candidates, and how many lines are the head of the file."""
    count, found, first = None, {}, 0
    for first, line in enumerate(lines):
        if not line.startswith("#"):
            break
        fact = _FACT.match(line)
        if fact is None:
            continue
        what, number, value = fact[1].strip(), fact[2], fact[3].strip()
        if what == "NUMBER ALTERNATIVES":
            if not value.isdigit() or not 1 <= int(value) <= MOST_CANDIDATES:
                raise ValueError(f"{name}, line {first + 1}: {value!r} alternatives; 1 to {MOST_CANDIDATES} expected")
            count = int(value)
        elif what == "ALTERNATIVE NAME" and number:
            found[int(number)] = value
    if count is None:
        raise ValueError(f"{name}: no line '# NUMBER ALTERNATIVES: m' at the head; PrefLib's present format expected")
    return tuple(found.get(i, str(i)) for i in range(1, count + 1)), first


def _ballot(line: str, candidates: int, where: str) -> tuple[int, list[list[int]]]:
    """How many voters, and their groups of equals, best first; those not named are a last group."""
    count, colon, rest = line.partition(":")
    if not colon or not count.strip().isdigit() or int(count) == 0:
        raise ValueError(f"{where}: {line.strip()[:40]!r}; a number of voters, a colon and a ranking expected")
    groups: list[list[int]] = []
    for part in re.findall(r"\{[^{}]*\}|[^,{}]+|[{}]", rest.replace(" ", "")):
        members = part[1:-1].split(",") if part.startswith("{") and part.endswith("}") and len(part) > 1 else [part]
        group = [int(member) - 1 if member.isdigit() else -1 for member in members if member]
        if any(not 0 <= member < candidates for member in group):
            raise ValueError(f"{where}: {part!r} is no candidate; a number from 1 to {candidates} expected")
        if group:
            groups.append(group)
    named = [member for group in groups for member in group]
    if len(named) != len(set(named)):
        raise ValueError(f"{where}: a candidate is ranked twice")
    left = sorted(set(range(candidates)) - set(named))
    return int(count), groups + ([left] if left else [])


def _fill(names: tuple[str, ...], ballots: Sequence[tuple[int, list[list[int]]]], seed: int) -> Profile:
    random = stream(seed, "ballots", "fill")
    parts, completed = [], 0
    for count, groups in ballots:
        columns = []
        for group in groups:
            rows = np.tile(np.array(group, np.int16), (count, 1))
            columns.append(random.permuted(rows, axis=1) if len(group) > 1 else rows)
        completed += count * any(len(group) > 1 for group in groups)
        parts.append(np.concatenate(columns, axis=1))
    return Profile(names, np.concatenate(parts), completed)


# ---------------------------------------------------------------------------------------- from a model


def _profile(orders: npt.ArrayLike) -> Profile:
    matrix = np.asarray(orders).astype(np.int16)
    return Profile(tuple(chr(97 + c) if matrix.shape[1] <= 26 else str(c) for c in range(matrix.shape[1])), matrix)


def _sized(voters: int, candidates: int) -> None:
    if not 1 <= voters <= MOST_VOTERS or not 1 <= candidates <= MOST_CANDIDATES:
        raise ValueError(f"{voters} voters and {candidates} candidates; at least one of each expected")


def impartial(voters: int, candidates: int, seed: int = 0) -> Profile:
    """Impartial culture: every ranking is as likely as any other.

    >>> impartial(4, 3).orders.shape
    (4, 3)
    """
    _sized(voters, candidates)
    return _profile(stream(seed, "ballots", "impartial").random((voters, candidates)).argsort(axis=1))


def mallows(voters: int, centre: Sequence[int], dispersion: float, seed: int = 0) -> Profile:
    """Rankings near a central one: each swap away from it is ``dispersion`` times as likely (0: all equal, 1: none).

    >>> mallows(3, [1, 0], dispersion=0.0).orders.tolist()
    [[1, 0], [1, 0], [1, 0]]
    """
    _sized(voters, len(centre))
    if not 0 <= dispersion <= 1:
        raise ValueError(f"a dispersion of {dispersion}; 0 to 1 expected")
    random = stream(seed, "ballots", "mallows")
    places = np.zeros((voters, len(centre)), np.int16)
    for i in range(1, len(centre)):  # the i-th candidate goes in j places above the end of those before it
        weights = float(dispersion) ** np.arange(i + 1)
        up = random.choice(i + 1, size=voters, p=weights / weights.sum())
        at = (i - up).astype(np.int16)
        places[:, :i] += places[:, :i] >= at[:, None]
        places[:, i] = at
    return _profile(np.asarray(centre)[places.argsort(axis=1)])


def plackett_luce(voters: int, weights: Sequence[float], seed: int = 0) -> Profile:
    """Each place goes to one of those left, with chances in proportion to their weights.

    >>> plackett_luce(2, [1.0, 1e-12]).orders.tolist()
    [[0, 1], [0, 1]]
    """
    _sized(voters, len(weights))
    if min(weights) <= 0:
        raise ValueError(f"a weight of {min(weights)}; positive ones expected")
    gumbel = stream(seed, "ballots", "plackett-luce").gumbel(size=(voters, len(weights)))
    return _profile((-(np.log(weights) + gumbel)).argsort(axis=1))


def spatial(voters: int, candidates: int, seed: int = 0) -> Profile:
    """Voters and candidates are points in a square; the nearer, the better.

    >>> sorted(spatial(1, 4).orders[0].tolist())
    [0, 1, 2, 3]
    """
    _sized(voters, candidates)
    random = stream(seed, "ballots", "spatial")
    places, stands = random.random((voters, 1, 2)), random.random((1, candidates, 2))
    return _profile((((places - stands) ** 2).sum(axis=2)).argsort(axis=1))


def cycle(voters: int, candidates: int) -> Profile:
    """Condorcet's cycle: as many voters for each rotation of one ranking, as nearly as it goes.

    >>> cycle(3, 3).orders.tolist()
    [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    """
    _sized(voters, candidates)
    return _profile((np.arange(candidates)[None, :] + np.arange(voters)[:, None]) % candidates)


def two_camps(voters: int, candidates: int, margin: float, seed: int = 0) -> Profile:
    """Two front runners, each second to the other's voters; one leads by ``margin`` of all voters.

    The other candidates follow in random order: no landslide, and the lead can be as thin as one voter. Who leads is
    random too, lest a rule that breaks ties by name always break them in the leader's favour.

    >>> camps = two_camps(100, 3, margin=0.1)
    >>> sorted(np.bincount(camps.orders[:, 0], minlength=3).tolist())
    [0, 45, 55]
    """
    _sized(voters, candidates)
    if not 0 <= margin <= 1 or candidates < 2:
        raise ValueError(f"a margin of {margin} among {candidates} candidates; 0 to 1, and at least 2 expected")
    orders = impartial(voters, candidates, seed).positions.argsort(axis=1).astype(np.int16)
    rest = orders[orders > 1].reshape(voters, candidates - 2)
    ahead = round(voters * (1 + margin) / 2)
    front = np.where(np.arange(voters)[:, None] < ahead, [[0, 1]], [[1, 0]])
    random = stream(seed, "ballots", "camps")
    orders = np.concatenate([front, rest], axis=1)[random.permutation(voters)]
    return _profile(random.permutation(candidates)[orders])
