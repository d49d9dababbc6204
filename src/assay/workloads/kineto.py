"""Kineto (PyTorch profiler) and Chrome JSON traces as a :class:`~assay.sim.telemetry.Frame`; a file for each rank.

A rank is an entity with threads and GPU streams below it; every file has a clock of its own. Spans on streams are
`kernel`, `comm` or `memcpy`; `ProfilerStep#7` is a `step` with the number 7; an edge `calls` leads from the call that
launched a kernel to the kernel. The collectives of a group are numbered (`seq`) by the profiler or, where it does not,
by their order within the step they were launched in.

>>> from assay.workloads.kineto_generate import Job, write
>>> from pathlib import Path; from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as folder:
...     recorded = read(write(Job(ranks=2, steps=2, layers=3), Path(folder)))
>>> recorded.clocks
['rank 0', 'rank 1']
>>> recorded.spans.filter(pl.col("cat") == "comm")["seq"].n_unique() > 1
True
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.sim.telemetry import CATEGORIES, Frame
from assay.workloads.json_scan import MISSING
from assay.workloads.kineto_file import Recording, phases, read_file
from assay.workloads.kineto_links import launches, paired_ends, pairs, places
from assay.workloads.kineto_names import category, element_size, gathers, is_device, point_to_point, process
from assay.workloads.kineto_window import Progress

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_HOUR = 3600 * 10**9
Ints = NDArray[np.int64]


def read(paths: Sequence[Path] | Path, progress: Progress | None = None) -> Frame:
    """Read one file or the files of several ranks."""
    chosen = [paths] if isinstance(paths, Path) else list(paths)
    return frame(read_file(path, progress) for path in chosen)


def frame(recordings: Iterable[Recording]) -> Frame:
    """One frame of the recordings of several ranks; a file that does not say its rank gets the next free one."""
    repairs: dict[str, int] = {}
    tables: list[_Tables] = []
    taken: dict[int, str] = {}
    for recording in recordings:
        rank = recording.rank
        if rank is None:
            rank = next(i for i in range(len(taken) + 1) if i not in taken)
        if rank in taken:
            raise BadInput(
                f"{recording.name} and {taken[rank]} both say that they are rank {rank}; one file of each rank, and of "
                "one recording, would be right"
            )
        taken[rank] = recording.name
        entities = sum(len(table.entities) for table in tables)
        spans = sum(len(table.spans) for table in tables)
        tables.append(_Tables(recording, rank, entities, spans, repairs))
    if not any(len(table.spans) for table in tables):
        lost = f" ({'; '.join(f'{what}: {times}' for what, times in repairs.items())})" if repairs else ""
        raise BadInput(
            f"{', '.join(taken.values())}: no span of time in it{lost}; events of phase X, or B and E, "
            "with their times in microseconds would be right"
        )
    return Frame.of(
        pl.concat(table.entities for table in tables),
        spans=pl.concat(table.spans for table in tables),
        events=pl.concat(table.events for table in tables),
        edges=pl.concat(table.edges for table in tables),
        source=", ".join(taken.values()),
        repairs=repairs,
    )


class _Tables:
    """The tables of one rank; its entities and spans are numbered from where the rank before it ended."""

    def __init__(self, recording: Recording, rank: int, entity: int, span: int, repairs: dict[str, int]) -> None:
        self.recording, self.rank, self.repairs = recording, rank, repairs
        if recording.cut is not None:
            self.count(f"{recording.name} ends early, at byte {recording.cut}: the whole events before it kept", 1)
        codes = self._categories()
        rows, dur = self._spans_of(codes)
        self.first = span + 1
        of_rows = self._entities(codes, entity, rows)
        self._fill_spans(rows, dur, codes[rows], of_rows)
        self._fill_events(entity)

    def count(self, what: str, times: int) -> None:
        if times:
            self.repairs[what] = self.repairs.get(what, 0) + int(times)

    def _categories(self) -> NDArray[np.int8]:
        """The category of every event, decided once for each pair of (category, name) that occurs."""
        recording = self.recording
        key = (recording["cat"].astype(np.int64) + 1) * (len(recording.strings) + 1) + recording["name"] + 1
        pairs, inverse = np.unique(key, return_inverse=True)
        known = [*recording.strings, ""]  # -1: not named
        made = [category(known[pair // len(known) - 1], known[pair % len(known) - 1]) for pair in pairs.tolist()]
        self.device = np.array([is_device(known[p // len(known) - 1]) for p in pairs.tolist()], bool)[inverse]
        codes = np.array([CATEGORIES.index(cat) for cat in made], np.int8)[inverse]
        self._by_process(codes)
        return codes

    def _by_process(self, codes: NDArray[np.int8]) -> None:
        """Put right what a process's name tells of its events: Ascend's have no categories."""
        recording = self.recording
        for pid, kind in _processes(recording).items():
            rows = np.flatnonzero(recording["pid"] == pid)
            names, inverse = np.unique(recording["name"][rows], return_inverse=True)
            made = [category("kernel", [*recording.strings, ""][at]) for at in names.tolist()]
            if kind != "device":  # planes and groups tell once more what the collective's own row does
                made = [cat if kind == "collectives" and cat == "comm" else "annotation" for cat in made]
            codes[rows] = np.array([CATEGORIES.index(cat) for cat in made], np.int8)[inverse]
            self.device[rows] = True if kind == "device" else codes[rows] == CATEGORIES.index("comm")

    def _spans_of(self, codes: NDArray[np.int8]) -> tuple[Ints, Ints]:
        """The events that are spans with their durations: whole ones, and beginnings paired with their ends."""
        recording = self.recording
        rows, dur = np.flatnonzero(phases(recording, "X")), recording["dur"]
        begun = np.flatnonzero(phases(recording, "BE"))
        if len(begun):
            order = begun[np.argsort(recording["ts"][begun], kind="stable")]
            _, thread = np.unique(
                np.stack([recording["pid"][order], recording["tid"][order]]), axis=1, return_inverse=True
            )
            partner = paired_ends(thread.ravel(), recording["ph"][order] == ord("B"))
            dur = dur.copy()
            closed = partner >= 0
            dur[order[closed]] = recording["ts"][order[partner[closed]]] - recording["ts"][order[closed]]
            self.count(
                "spans that begin and never end, or end and never began, left out", len(order) - 2 * closed.sum()
            )
            rows = np.sort(np.concatenate([rows, order[closed]]))
        ts = recording["ts"][rows]
        usable = (ts != MISSING) & (dur[rows] >= 0)
        self.count("spans without a usable time left out", len(rows) - usable.sum())
        rows, ts = rows[usable], ts[usable]
        if len(rows):
            near = (np.abs(ts - int(np.median(ts))) < 24 * _HOUR) & (dur[rows] < 24 * _HOUR)
            what = "spans a day or more from the rest, or as long, left out: the clock jumped"
            self.count(what, len(rows) - near.sum())
            rows = rows[near]
        rows = self._once(rows, dur)
        return rows, dur[rows]

    def _once(self, rows: Ints, dur: Ints) -> Ints:
        """Without calls and kernels that are there twice: same correlation, place, time and name."""
        recording = self.recording
        linked = rows[recording["correlation"][rows] > 0]
        same = pl.DataFrame(
            {name: recording[name][linked] for name in ("correlation", "pid", "tid", "name", "ts")}
            | {"dur": dur[linked], "row": linked}
        )
        kept = same.unique(["correlation", "pid", "tid", "name", "ts", "dur"], keep="first")
        if len(kept) == len(linked):
            return rows
        self.count("calls and kernels given twice, one kept", len(linked) - len(kept))
        doubled = np.setdiff1d(linked, kept["row"].to_numpy())
        return rows[~np.isin(rows, doubled)]

    def _entities(self, codes: NDArray[np.int8], first: int, rows: Ints) -> NDArray[np.uint32]:
        """Number the rank, its threads and its streams; the entity of each row."""
        recording = self.recording
        said = np.flatnonzero(phases(recording, "iIR") & (recording["ts"] != MISSING))
        self.said = said
        every = np.concatenate([rows, said])
        places, inverse = pairs(recording["pid"][every], recording["tid"][every])
        inverse = inverse + 1
        streams = np.zeros(len(places) + 1, bool)
        np.logical_or.at(streams, inverse[: len(rows)], self.device[rows])
        labels = _labels(recording)
        devices = {pid for (pid, _), stream in zip(places, streams[1:], strict=True) if stream}
        table = [{"id": first, "kind": "rank", "name": str(self.rank), "parent": None}]
        for i, (pid, tid) in enumerate(places, 1):
            kind = "stream" if streams[i] else "thread"
            word = recording.word(tid)
            if streams[i] and len(devices) > 1:
                word = f"{word} of device {recording.word(pid)}"
            elif not streams[i] and (label := labels.get((pid, tid))):
                word = f"{word} ({label})"
            table.append({"id": first + i, "kind": kind, "name": f"{self.rank}/{kind} {word}", "parent": first})
        kinds = {"id": pl.UInt32, "kind": pl.String, "name": pl.String, "parent": pl.UInt32}
        self.entities = pl.DataFrame(table, schema=kinds).with_columns(clock=pl.lit(f"rank {self.rank}"))
        self.of_said = (inverse[len(rows) :] + first).astype(np.uint32)
        return (inverse[: len(rows)] + first).astype(np.uint32)

    def _fill_spans(self, rows: Ints, dur: Ints, cat: NDArray[np.int8], entity: NDArray[np.uint32]) -> None:
        recording = self.recording
        ids = np.arange(self.first, self.first + len(rows), dtype=np.uint64)
        start, correlation = recording["ts"][rows], recording["correlation"][rows]
        device = self.device[rows]
        links = launches(correlation, device, ids)
        launched = start.copy()
        launched[links[1]] = start[links[0]]
        self.count(
            "kernels that begin before the call that launched them: the device's clock is behind",
            (start[links[1]] < launched[links[1]]).sum(),
        )
        known = pl.Series([*recording.strings, ""], dtype=pl.Categorical)
        self.edges = pl.DataFrame({"src": ids[links[0]], "dst": ids[links[1]]}).with_columns(kind=pl.lit("calls"))
        comm = cat == CATEGORIES.index("comm")
        on_device = comm & device
        group, numbers = self._collectives(rows, cat, launched, on_device if on_device.any() else comm)
        self.spans = pl.DataFrame(
            {
                "span": ids, "entity": entity, "start": start, "dur": dur,
                "name": known.gather(recording["name"][rows].astype(np.int64) % len(known)),
                "cat": pl.Series(CATEGORIES, dtype=pl.Enum(CATEGORIES)).gather(cat.astype(np.int64)),
                "bytes": _nullable(self._bytes(rows, comm)), "group": group, "seq": _nullable(numbers),
            }
        )  # fmt: skip

    def _bytes(self, rows: Ints, comm: NDArray[np.bool_]) -> Ints:
        """What a copy or a collective moves; the whole vector of a gather, of which gloo tells what one rank gives."""
        recording = self.recording
        size = np.array([element_size(word) for word in recording.strings] + [0])[recording["dtype"][rows]]
        elements = np.maximum(recording["sent"][rows], recording["received"][rows])
        parts = np.array([gathers(word) for word in recording.strings] + [False])[recording["name"][rows]]
        elements[parts & (elements >= 0) & ~self.device[rows]] *= recording.ranks
        known = comm & (size > 0) & (elements >= 0)
        return np.where(known, elements * size, recording["bytes"][rows])

    def _collectives(
        self, rows: Ints, cat: NDArray[np.int8], launched: Ints, comm: NDArray[np.bool_]
    ) -> tuple[pl.Series, Ints]:
        """The group and the number of each collective; steps have their own number."""
        recording = self.recording
        numbers = np.full(len(rows), MISSING)
        steps = np.flatnonzero(cat == CATEGORIES.index("step"))
        names = [_STEP.search(recording.strings[i]) for i in recording["name"][rows[steps]]]
        numbers[steps] = [int(found.group(1)) if found else 0 for found in names]
        order = np.argsort(launched[steps])
        at = np.searchsorted(launched[steps][order], launched, side="right") - 1
        step = np.where(at >= 0, numbers[steps][order][at], -1) if len(steps) else np.full(len(rows), -1)
        words = {int(code): _group(recording, int(code)) for code in np.unique(recording["group"][rows])}
        ranks = recording["ranks"][rows]
        known = ["", *sorted(set(words.values()) - {""}), *recording.strings]
        place = {word: i for i, word in reversed(list(enumerate(known)))}
        codes, inverse = np.unique(recording["group"][rows], return_inverse=True)
        group = np.array([place[words[int(code)]] for code in codes], np.int64)[inverse]
        group = np.where((group == 0) & (ranks >= 0), len(known) - len(recording.strings) + ranks, group)
        alone = np.array([point_to_point(word) for word in recording.strings] + [False])[recording["name"][rows]]
        counted = np.flatnonzero(comm & ~alone)
        said = recording["seq"][rows[counted]]
        numbers[counted] = np.where(said != MISSING, said, places(group[counted], step[counted], launched[counted]))
        named = pl.Series(known, dtype=pl.Categorical).gather(group)
        return named.set(pl.Series(~comm | (group == 0)), None), numbers

    def _fill_events(self, first: int) -> None:
        recording, said = self.recording, self.said
        known = pl.Series([*recording.strings, ""], dtype=pl.Categorical)
        self.events = pl.DataFrame(
            {
                "t": recording["ts"][said], "entity": self.of_said,
                "name": known.gather(recording["name"][said].astype(np.int64) % len(known)),
            }
        )  # fmt: skip


def _nullable(values: Ints) -> pl.Series:
    return pl.Series(values).set(pl.Series(values == MISSING), None)


def _group(recording: Recording, code: int) -> str:
    return "" if code == MISSING else recording.word(code)


def _processes(recording: Recording) -> dict[int, str]:
    """Processes whose name tells what their rows are."""
    named = np.flatnonzero(phases(recording, "M") & (recording["label"] >= 0) & (recording["name"] >= 0))
    found = {
        int(recording["pid"][i]): process(recording.strings[recording["label"][i]])
        for i in named
        if recording.strings[recording["name"][i]] == "process_name"
    }
    return {pid: kind for pid, kind in found.items() if kind}


def _labels(recording: Recording) -> dict[tuple[int, int], str]:
    """What threads are called."""
    named = np.flatnonzero(phases(recording, "M") & (recording["label"] >= 0))
    return {
        (int(recording["pid"][i]), int(recording["tid"][i])): recording.strings[recording["label"][i]]
        for i in named
        if recording["name"][i] >= 0 and recording.strings[recording["name"][i]] == "thread_name"
    }
