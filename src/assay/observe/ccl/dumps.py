"""Who hangs, from Flight Recorder dumps: the questions of CCL-D as far as such dumps can answer them.

A dump says which collectives a rank called and which are over; it does not say how far one got inside. So a rank that
did not call (H1), ranks that called different things (H2) and, where dumps hold durations, a rank that comes late
(S1) can be told; a rank stuck inside (H3) and a slow wire (S2, S3) cannot, and are reported as undecided instead of
guessed. A member that left no dump at all is named as well: it is dead, or frozen before it could write.

With several process groups a hang spreads: a rank that is missing in one group may itself be waiting in another. The
finding to act on is the one whose suspects wait nowhere else.

>>> import msgspec
>>> from assay.workloads import flight_recorder
>>> def call(seq, kind):
...     return {"collective_seq_id": seq, "profiling_name": f"nccl:{kind}", "process_group": ["0", "default_pg"],
...             "input_sizes": [[8]], "input_dtypes": ["Float"], "state": "started"}
>>> def dump(rank, *calls):
...     return flight_recorder.parse(msgspec.json.encode({"entries": list(calls)}), rank)
>>> calls = [[call(1, "all_reduce")], [call(1, "all_reduce")], [call(1, "all_gather")]]
>>> found = diagnose(flight_recorder.merge(dump(rank, *own) for rank, own in enumerate(calls)))[0]
>>> found.diagnosis.label, [suspect.entity for suspect in found.diagnosis.suspects]
('H2', ['2'])
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from assay.observe.ccl.detect import FACTOR, REPEATS, WARM
from assay.observe.ccl.locate import BETA, H1, H2, H3, MEANING, S1, S2, S3, share
from assay.observe.interface import Diagnosis, Suspect
from assay.workloads.flight_recorder import Dumps

UNEVEN = r"^(all_?to_?all.*|scatter|gather|.*_v|.*coalesced.*)$"
"""Collectives whose sizes may rightly differ between ranks: only the kind is compared there."""
ROOTED = r"^(broadcast|reduce|gather|scatter)$"
NO_DUMP = "no dump"


@dataclass(frozen=True)
class Finding:
    """What one process group's dumps say. `undecided`: classes these dumps cannot tell apart or rule out."""

    group: str
    description: str
    operation: int | None  # the collective that is stuck, or the last slow one
    kind: str
    members: tuple[int, ...]
    waiting: tuple[int, ...]  # who is inside it
    diagnosis: Diagnosis
    undecided: tuple[str, ...] = ()
    behind: str | None = None  # the group in which this one's suspects wait themselves
    where: str = ""  # the line from which most ranks called

    @property
    def healthy(self) -> bool:
        """Nothing is stuck and nobody is late."""
        return not self.waiting and not self.diagnosis.label and not self.diagnosis.suspects


def diagnose(dumps: Dumps) -> list[Finding]:
    """A finding for each process group: those to act on first, healthy ones last."""
    names = sorted({*dumps.calls["group"].unique().to_list(), *dumps.groups})
    found = [_group(dumps, name) for name in names]
    hung = {finding.group: set(finding.waiting) for finding in found if finding.waiting}
    linked = [replace(finding, behind=_behind(finding, hung)) for finding in found]
    return sorted(linked, key=lambda f: (f.healthy, f.behind is not None, not f.diagnosis.suspects, f.group))


def _behind(finding: Finding, hung: Mapping[str, set[int]]) -> str | None:
    """Another hung group in which one of the suspects is waiting: look there first."""
    blamed = {int(s.entity) for s in finding.diagnosis.suspects if s.label == H1}
    for name, waiting in hung.items():
        if name != finding.group and blamed & waiting:
            return name
    return None


def _group(dumps: Dumps, name: str) -> Finding:
    calls = dumps.calls.filter(pl.col("group") == name)
    description = dumps.descriptions.get(name, "")
    listed = dumps.groups.get(name, ())
    world = range(max(dumps.ranks, default=-1) + 1) if description == "default_pg" else ()  # ranks are counted through
    members = tuple(sorted({*listed, *world, *calls["rank"].to_list()}))
    silent = [rank for rank in members if rank not in dumps.ranks]
    newest = dict(calls.group_by("rank").agg(pl.col("seq").max()).rows())
    current = _under_way(calls)
    if not current:
        return _not_hung(calls, name, description, members, silent)
    stuck = _first_mismatch(calls, min(current.values()))
    at = calls.filter(pl.col("seq") == stuck)
    waiting = tuple(sorted(current))
    kind = Counter(at["kind"].to_list()).most_common(1)[0][0]
    places = [place for place in at["where"].to_list() if place]
    where = Counter(places).most_common(1)[0][0] if places else ""
    behind = [rank for rank in members if rank in dumps.ranks and newest.get(rank, 0) < stuck]
    diagnosis, undecided = _hang(at, behind, silent, newest, stuck)
    if not diagnosis.suspects:
        diagnosis, undecided = _left_open(diagnosis, undecided, kind, bool(listed), len(world))
    return Finding(name, description, stuck, kind, members, waiting, diagnosis, undecided, where=where)


def _left_open(
    diagnosis: Diagnosis, undecided: tuple[str, ...], kind: str, listed: bool, ranks: int
) -> tuple[Diagnosis, tuple[str, ...]]:
    """A hang without a suspect: what else the dumps do not hold, and what it could therefore be."""
    why = [diagnosis.why]
    if not listed:  # Gloo does not say who belongs to a group, nor how many there are
        unseen = f"a rank after {ranks - 1} without a dump" if ranks else "one that never called"
        why.append(f"the dumps do not list the members: {unseen} is unseen")
        undecided = (H1, *undecided)
    if re.match(ROOTED, kind):
        why.append("nor do dumps hold the root, which may differ")
        undecided = tuple(sorted({H2, *undecided}))
    return replace(diagnosis, why="; ".join(why)), undecided


def _under_way(calls: pl.DataFrame) -> dict[int, int]:
    """The call each rank is in: the first after the last that is over. Later ones are queued behind it."""
    over = calls.group_by("rank").agg(over=pl.col("seq").filter(pl.col("done")).max().fill_null(0))
    left = calls.join(over, on="rank").filter(~pl.col("done") & (pl.col("seq") > pl.col("over")))
    return dict(left.group_by("rank").agg(pl.col("seq").min()).sort("rank").rows())


def _first_mismatch(calls: pl.DataFrame, stuck: int) -> int:
    """The first call up to the stuck one that ranks made differently: what went wrong there may show later."""
    compared = calls.filter(pl.col("seq") <= stuck).with_columns(_compared())
    differ = compared.group_by("seq").agg(pl.col("call").n_unique()).filter(pl.col("call") > 1)
    return stuck if differ.is_empty() else int(differ["seq"].min())  # type: ignore[arg-type]


def _compared() -> pl.Expr:
    """What must be equal on all ranks; where some rank calls a collective of uneven sizes, only the kind."""
    uneven = pl.col("kind").str.contains(UNEVEN).any().over("seq")
    return pl.when(uneven).then("kind").otherwise("signature").alias("call")


def _hang(
    at: pl.DataFrame, behind: Sequence[int], silent: Sequence[int], newest: Mapping[int, int], stuck: int
) -> tuple[Diagnosis, tuple[str, ...]]:
    odd = _minority(at)
    if odd:
        suspects = tuple(Suspect(str(rank), call, 1.0, H2, MEANING[H2]) for rank, call in odd)
        return Diagnosis(suspects, label=H2), ()
    late = tuple(
        Suspect(str(rank), "enter", float(stuck - newest.get(rank, 0)), H1, MEANING[H1])
        for rank in sorted(behind, key=lambda rank: newest.get(rank, 0))
    )
    gone = tuple(Suspect(str(rank), NO_DUMP, 1.0, NO_DUMP, "dead, or frozen before it wrote") for rank in silent)
    if late:
        return Diagnosis(late + gone, label=H1), ()
    why = "all called the same; without Send and Recv counts a dump cannot say who is stuck inside"
    return Diagnosis(gone, label=NO_DUMP if gone else "", why=why), (H1, H3, S2, S3) if gone else (H3, S2, S3)


def _minority(at: pl.DataFrame) -> list[tuple[int, str]]:
    """Ranks that called something else at this number than most did, and what; all where nobody has a majority."""
    calls = at.with_columns(_compared())["call"].to_list()
    counts = Counter(calls)
    if len(counts) < 2:
        return []
    most = max(counts.values())
    usual = [call for call, count in counts.items() if count == most]
    ranks = at["rank"].to_list()
    return [(rank, call) for rank, call in zip(ranks, calls, strict=True) if len(usual) > 1 or call != usual[0]]


def _not_hung(
    calls: pl.DataFrame, name: str, description: str, members: tuple[int, ...], silent: Sequence[int]
) -> Finding:
    """Nothing is under way: perhaps somebody comes late. That shows in durations, where the dumps have them."""
    late, operation, kind = _late(calls)
    gone = tuple(Suspect(str(rank), NO_DUMP, 1.0, NO_DUMP, "dead, or frozen before it wrote") for rank in silent)
    diagnosis = replace(late, suspects=late.suspects + gone, label=late.label or (NO_DUMP if gone else ""))
    timed = bool(calls["duration"].is_not_null().any())
    undecided = () if late.label == S1 else (S2, S3) if timed else (S1, S2, S3)
    return Finding(name, description, operation, kind, members, (), diagnosis, undecided)


def _late(calls: pl.DataFrame) -> tuple[Diagnosis, int | None, str]:
    """S1, where the last rounds of some collective were slow and the durations tell a late rank."""
    ranks = calls["rank"].n_unique()
    for (signature,), rows in calls.filter(pl.col("duration").is_not_null()).group_by("signature", maintain_order=True):
        wide = rows.pivot("rank", index="seq", values="duration").drop_nulls().sort("seq")
        if len(wide) < WARM + REPEATS or wide.width - 1 < ranks:
            continue
        took = wide.drop("seq").to_numpy() / 1e9
        base = float(np.median(took[:-REPEATS].max(1)))
        last = took[-REPEATS:]
        if not (last.max(1) > FACTOR * base).all():
            continue
        part = float(np.median([share(row, base) for row in last]))
        operation, kind = int(wide["seq"][-1]), str(signature).split(" ")[0]
        if part < BETA:
            return Diagnosis(why="rounds are slow, and not by one late rank alone"), operation, kind
        rank = wide.columns[1 + int(np.argmin(np.median(last, 0)))]
        return Diagnosis((Suspect(rank, "enter", part, S1, MEANING[S1]),), label=S1), operation, kind
    return Diagnosis(), None, ""
