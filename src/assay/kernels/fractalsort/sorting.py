"""The sort as a call, as an index that answers without being written out, and over a file larger than memory."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.kernels.engine.arrays import number, team
from assay.kernels.fractalsort import blocks, counting, packing
from assay.kernels.fractalsort.keys import (
    FLOAT,
    PLAIN,
    Keys,
    decoded,
    extremes,
    keys_of,
    marks,
    order,
    own_nans,
    values_of,
)
from assay.record.errors import BadInput, unreadable

COUNTED_BITS = 20  # keys of so few bits are only counted
SMALL = 1 << 16  # below, NumPy's sort is done before threads have begun
LARGE = 1 << 32  # from here on counters of a bin might not do
CACHED_BITS = 18  # of the number of keys in a bin that is sorted in the cache
CACHED = 8 << 20  # bytes of a bin above which it is worth a pass of its own
SAMPLE = 1024  # keys


@dataclass(frozen=True)
class Plan:
    """How keys are cut: the least one, bits of a bin's number, bits of an entry, entries in a word."""

    low: Any
    bin_bits: int
    entry_bits: int
    each: int

    @property
    def counted(self) -> bool:
        """Whether the histogram of whole keys is all there is."""
        return self.entry_bits == 0


def plan_for(low: Any, high: Any, n: int) -> Plan:
    """Bins of at least 128 keys, at most 2,048 of them, and as many as pack one more entry into a word.

    >>> plan_for(np.uint64(0), np.uint64(2**32 - 1), 1 << 22)
    Plan(low=np.uint64(0), bin_bits=11, entry_bits=21, each=3)
    """
    bits, low = (int(high) - int(low)).bit_length(), np.uint64(low)  # compiled functions return plain numbers
    if bits <= COUNTED_BITS and (bits <= 16 or n >= 1 << (bits - 2)):
        return Plan(low, bits, 0, 1)
    most = min(11, bits, max(1, int(math.log2(max(2, n))) - 7))
    fitting = {
        taken: min(packing.MOST_PACKED, 64 // (bits - taken))
        for taken in range(max(1, most - 3), most + 1)
        if taken < bits
    }
    best = max(fitting.values())
    taken = min(taken for taken, each in fitting.items() if each == best)
    return Plan(low, taken, bits - taken, best)


def plain(plan: Plan, n: int) -> Plan:
    """The same keys each in a word of its own: few bins, which are filled faster, if each fits into a cache and what is
    left of a key are two digits; with more of them, the smaller a bin, the better.

    >>> plain(plan_for(np.uint64(0), np.uint64(2**32 - 1), 1 << 25), 1 << 25)
    Plan(low=np.uint64(0), bin_bits=8, entry_bits=24, each=1)
    """
    bits = plan.bin_bits + plan.entry_bits
    taken = min(max(8, n.bit_length() - CACHED_BITS), 11, plan.bin_bits)
    if bits - taken > 2 * packing.DIGIT:
        return replace(plan, each=1)
    return Plan(plan.low, taken, bits - taken, 1)


def span(keys: Keys, threads: int) -> tuple[Any, Any]:
    """The least and the largest key, or where a sample needs all bits already, those that there can be."""
    sign, infinity, _ = marks(keys)
    sample = np.ascontiguousarray(keys.words[:: max(1, len(keys.words) // SAMPLE)])
    low, high = extremes(sample, keys.kind, sign, infinity, 1)
    if (int(high) - int(low)).bit_length() == keys.bits:
        return np.uint64(0), np.uint64((1 << keys.bits) - 1)
    return extremes(keys.words, keys.kind, sign, infinity, threads)  # type: ignore[no-any-return]


def _threads(threads: int | None, n: int) -> int:
    return max(1, min(team(threads), n // 4096 or 1))


def sort(x: ArrayLike, threads: int | None = None) -> NDArray[Any]:
    """A sorted copy: the same as `np.sort(x)`, of whole numbers, floats (NaN last), dates, or up to 8 bytes of text.

    >>> sort([3, -1, 2]).tolist()
    [-1, 2, 3]
    >>> sort(np.array([np.nan, -0.5, np.inf])).tolist()
    [-0.5, inf, nan]
    """
    keys = keys_of(x)
    if not SMALL <= len(keys.words) < LARGE:
        few = np.sort(np.asarray(x))
        if keys.kind == FLOAT and len(few) and np.isnan(few[-1]):  # NumPy's vector code gives all of them the same bits
            few = values_of(own_nans(few.astype(few.dtype.newbyteorder("=")).view(keys.words.dtype), keys), keys.dtype)
        return few
    if way := order(keys):  # as it lies, or turned
        return values_of(keys.words[::way].copy(), keys.dtype)
    return Index.of(keys, threads, keep=False).spent()


@dataclass(frozen=True)
class Index:
    """Sorted keys that are not written out: counts of the bins and what each bin's keys have beside.

    >>> keys = np.random.default_rng(0).integers(0, 2**32, 1_000_000, dtype=np.uint32)
    >>> made = index(keys)
    >>> bool(made.select(17) == np.sort(keys)[17]), made.bytes < 0.7 * keys.nbytes
    (True, True)
    """

    keys: Keys
    plan: Plan
    counts: NDArray[np.int64]  # of each thread's share and bin; of counted keys one row
    starts: NDArray[np.int64]
    packed: NDArray[Any]  # entries, several in a word or each in one
    threads: int

    @classmethod
    def of(cls, keys: Keys, threads: int | None = None, keep: bool = True) -> Index:
        """Count, and of keys with many bits, scatter their entries into bins; `keep` sorts each bin at once."""
        n = len(keys.words)
        team = _threads(threads, n)
        sign, infinity, _ = marks(keys)
        if keys.bits <= 16:
            plan = Plan(np.uint64(0), keys.bits, 0, 1)
        else:
            plan = plan_for(*span(keys, team), n)
            if not keep and not plan.counted:
                plan = plain(plan, n)
        none = np.empty((0, 0), np.int64)
        if plan.counted:
            counts = counting.histogram(keys.words, keys.kind, sign, infinity, plan.low, plan.bin_bits, team)
            return cls(keys, plan, counts[None], none, np.empty(0, np.uint64), team)
        shift, bins = plan.entry_bits, 1 << plan.bin_bits
        by, mask = np.uint64(shift), np.uint64((1 << shift) - 1)
        by_block = blocks.count_blocks(keys.words, keys.kind, sign, infinity, plan.low, by, bins, team)
        counts = by_block.sum(axis=1, dtype=np.int64)
        starts, total = packing.places(counts, 1)
        entries = np.empty(total, np.uint32 if shift <= 32 else np.uint64)
        blocks.scatter(keys.words, keys.kind, sign, infinity, plan.low, by, mask, by_block, starts, entries)
        made = cls(keys, replace(plan, each=1), counts, starts, entries, team)
        return made._sorted(plan.each) if keep else made

    def _sorted(self, each: int) -> Index:
        """The same with each bin's entries sorted and packed, one run a bin."""
        entries = self._written(np.empty(len(self.keys.words), np.uint64), whole=False)
        counts = self.counts.sum(axis=0, keepdims=True)
        starts, total = packing.places(counts, each)
        packed = np.empty(total, np.uint64)
        packing.repack(entries, counts[0], starts[0], self.plan.entry_bits, each, packed)
        return Index(self.keys, replace(self.plan, each=each), counts, starts, packed, self.threads)

    @property
    def bytes(self) -> int:
        """What the index takes."""
        return int(self.counts.nbytes + self.starts.nbytes + self.packed.nbytes)

    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts.sum(axis=0))

    def select(self, i: int) -> Any:
        """The i-th smallest value: a search among the bins, and one entry."""
        n = len(self.keys.words)
        if not 0 <= i < n:
            raise BadInput(f"select({i}): the index has {n} keys, so 0 to {n - 1}")
        ends = self._ends()
        place = int(np.searchsorted(ends, i, side="right"))
        key = int(self.plan.low) + (place << self.plan.entry_bits)
        if not self.plan.counted:
            within = i - (int(ends[place - 1]) if place else 0)
            word, slot = divmod(within, self.plan.each)
            bits = self.plan.entry_bits
            key += (int(self.packed[self.starts[0, place] + word]) >> (slot * bits)) & ((1 << bits) - 1)
        sign, _, nan = marks(self.keys)
        word = decoded(np.uint64(key), self.keys.kind, sign, nan)
        if self.keys.kind == FLOAT and word == nan:
            return self._nans(i)
        return values_of(np.array([word]).astype(self.keys.words.dtype), self.keys.dtype)[0]

    def _nans(self, i: int) -> Any:
        """The i-th value, which is a NaN: as the caller's own are in order."""
        floats = self.keys.words.view(self.keys.dtype.newbyteorder("="))
        own = floats[np.isnan(floats)]
        return own[i - len(floats) + len(own)]

    def materialise(self) -> NDArray[Any]:
        """The sorted values."""
        out = np.empty(len(self.keys.words), self.keys.words.dtype)
        return values_of(own_nans(self._written(out, whole=True), self.keys), self.keys.dtype)

    def spent(self) -> NDArray[Any]:
        """The sorted values, in the memory of the entries where these are as wide; the index is none afterwards.

        Memory that has just been read is near, and there is half as much of it to be had from the system.
        """
        if self.plan.counted or self.packed.dtype != self.keys.words.dtype or self.plan.each > 1:
            return self.materialise()
        return values_of(own_nans(self._written(self.packed, whole=True), self.keys), self.keys.dtype)

    def _written(self, out: NDArray[Any], whole: bool) -> NDArray[Any]:
        """Whole keys as words of values; or only entries, each bin's sorted."""
        if whole:
            return self._into(out, self.keys, self.plan.low)
        return self._into(out, self.keys._replace(kind=PLAIN), np.uint64(0), whole=False)

    def _into(self, out: NDArray[Any], like: Keys, low: Any, whole: bool = True) -> NDArray[Any]:
        """Keys from `low` up as words like those; a bin that no cache holds is cut into bins of its own."""
        sign, _, nan = marks(like)
        plan = self.plan
        if plan.counted:
            counting.expand(self._ends(), out, like.kind, sign, nan, low, self.threads)
            return out
        each_bin = self.counts.sum(axis=0)
        ends, large = np.cumsum(each_bin), (each_bin * self.packed.itemsize > CACHED) & (plan.each == 1)
        for b in np.flatnonzero(large).tolist():
            source = self.packed[self.starts[0, b] :][: each_bin[b]]  # all threads' parts in a row
            within = Index.of(Keys(source, PLAIN, source.dtype), self.threads, keep=False)
            base = low + np.uint64(b << plan.entry_bits if whole else 0)
            within._into(out[ends[b] - each_bin[b] : ends[b]], like, base + within.plan.low)
        here = np.where(large, 0, each_bin)
        shares = [here.sum() * t // self.threads for t in range(self.threads + 1)]
        borders = np.searchsorted(np.cumsum(here), shares)
        borders[0], borders[-1] = 0, len(here)
        most = np.array([here[a:b].max(initial=1) for a, b in pairwise(borders.tolist())])
        packing.sort_bins(self.packed, self.counts, self.starts, plan.entry_bits, plan.each, borders, most, like.kind,
                          sign, nan, low, whole, out)  # fmt: skip
        return out


def index(x: ArrayLike, threads: int | None = None) -> Index:
    """An index of the sorted values, for `select` and `materialise`."""
    keys = keys_of(x)
    if not len(keys.words):
        raise BadInput("no keys: an index needs at least one")
    return Index.of(keys, threads)


# --------------------------------------------------------------------------------------------- out of core


def sort_file(
    source: str | Path, target: str | Path, memory: int = 1 << 28, threads: int | None = None
) -> dict[str, int]:
    """Sort the keys of an .npy file into another in bounded memory; returns what was read and written.

    Keys of up to 16 bits are counted in one pass. Longer ones are read in batches; each batch's entries go to a file
    beside the target, packed and by bin; then groups of bins are read from all batches, sorted and written.
    """
    source, target, memory = Path(source), Path(target), number(memory, "memory", 1)
    try:
        keys = np.load(source, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise unreadable(str(source), error) from error
    except ValueError as error:
        raise BadInput(f"{source}: {str(error).splitlines()[0]}; a .npy file of one row of keys expected") from None
    if not isinstance(keys, np.ndarray) or keys.ndim != 1 or not len(keys):
        raise BadInput(f"{source}: one row of keys expected, in .npy")
    whole = keys_of(keys[:1])
    batch = max(4096, memory // (4 * keys.itemsize))
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as aside:
            work = Path(aside.name)
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error.strerror}") from None
    try:
        out = np.lib.format.open_memmap(work, mode="w+", dtype=keys.dtype, shape=keys.shape)
        told = (
            _count_file(keys, whole, out, batch, threads)
            if whole.bits <= 16
            else _spill(keys, out, batch, threads, target)
        )
        _own_nans(keys, out, batch)
        out.flush()
        del out
        work.replace(target)
    finally:
        work.unlink(missing_ok=True)
    return told | {"batches": -(-len(keys) // batch), "keys": len(keys)}


def _own_nans(keys: Any, out: Any, batch: int) -> None:
    """NaNs, which are last, in the file's own bits, in its order."""
    if keys.dtype.kind != "f" or not np.isnan(out[-1]):
        return
    spans = range(0, len(keys), batch)
    at = len(keys) - sum(int(np.isnan(keys[begin : begin + batch]).sum()) for begin in spans)
    for begin in spans:
        piece = keys[begin : begin + batch]
        own = piece[np.isnan(piece)]
        out[at : at + len(own)] = own
        at += len(own)


def _batches(keys: Any, batch: int) -> Any:
    for begin in range(0, len(keys), batch):
        yield keys_of(np.array(keys[begin : begin + batch]))


def _count_file(keys: Any, like: Keys, out: Any, batch: int, threads: int | None) -> dict[str, int]:
    sign, infinity, nan = marks(like)
    counts = np.zeros(1 << like.bits, np.int64)
    for part in _batches(keys, batch):
        team = _threads(threads, len(part.words))
        counts += counting.histogram(part.words, like.kind, sign, infinity, np.uint64(0), like.bits, team)
    ends, begin = np.cumsum(counts), 0
    while begin < len(keys):
        end = min(begin + batch, len(keys))
        piece = np.empty(end - begin, like.words.dtype)
        counting.expand(np.clip(ends - begin, 0, end - begin), piece, like.kind, sign, nan, np.uint64(0), 1)
        out[begin:end] = values_of(piece, like.dtype)
        begin = end
    return {"read": int(keys.nbytes), "written": int(keys.nbytes), "spilled": 0}


def _spill(keys: Any, out: Any, batch: int, threads: int | None, target: Path) -> dict[str, int]:
    low, high = np.uint64(2**64 - 1), np.uint64(0)
    for part in _batches(keys, batch):
        sign, infinity, _ = marks(part)
        least, most = extremes(part.words, part.kind, sign, infinity, _threads(threads, len(part.words)))
        low, high = min(low, np.uint64(least)), max(high, np.uint64(most))
    plan = plan_for(low, high, max(batch, 1 << 21))
    bits = max(1, plan.entry_bits)  # few-bit keys over a wide type: one bit each keeps the bins' own work the same
    plan = Plan(low, max(0, int(high - low).bit_length() - bits), bits, min(packing.MOST_PACKED, 64 // bits))
    bins, read, written = 1 << plan.bin_bits, 2 * int(keys.nbytes), 0
    counts, places, offsets = [], [], []
    with tempfile.TemporaryFile(dir=target.parent) as spill:
        for part in _batches(keys, batch):
            sign, infinity, _ = marks(part)
            by_block = blocks.count_blocks(part.words, part.kind, sign, infinity, low, np.uint64(bits), bins, 1)
            count = by_block.sum(axis=1, dtype=np.int64)
            start, total = packing.places(count, plan.each)
            packed = np.empty(total, np.uint64)
            packing.scatter_packed(part.words, part.kind, sign, infinity, low, bits, plan.each, start, packed)
            offsets.append(spill.tell())
            packed.tofile(spill)
            counts.append(count[0])
            places.append(np.append(start[0], total))
            written += packed.nbytes
        every = np.stack(counts)
        each_bin, at, first = every.sum(axis=0), 0, 0
        while first < bins:
            last = max(first + 1, int(np.searchsorted(np.cumsum(each_bin[first:]), batch, side="right")) + first)
            last = min(last, bins)
            pieces, starts, base = [], np.empty((len(counts), last - first), np.int64), 0
            for number, place in enumerate(places):
                spill.seek(offsets[number] + 8 * int(place[first]))
                piece = np.fromfile(spill, np.uint64, int(place[last] - place[first]))
                starts[number] = place[first:last] - place[first] + base
                base += len(piece)
                pieces.append(piece)
            n = int(each_bin[first:last].sum())
            view = Index(part, Plan(low + (np.uint64(first) << np.uint64(bits)), 0, bits, plan.each),
                         np.ascontiguousarray(every[:, first:last]), starts, np.concatenate(pieces), 1)  # fmt: skip
            out[at : at + n] = values_of(view._written(np.empty(n, part.words.dtype), whole=True), part.dtype)
            at, first = at + n, last
    return {"read": read + written, "written": written + int(keys.nbytes), "spilled": written}
