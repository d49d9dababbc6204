"""Lossless frames of whole numbers: as they are, packed to the width of each block, or by Huffman's code.

A frame says which coder made it, so whoever receives it needs to know nothing. All loops are compiled, none has a
branch that the data decide: packing works on eight lanes at once, Huffman's code is written and read as four streams.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

Codes = NDArray[np.int32]
Bytes = NDArray[np.uint8]

RAW, FIXED, HUFFMAN = 0, 1, 2
NAMES = ("raw", "fixed", "huffman")
HEAD = 8  # bytes: the coder, three spare ones, how many symbols
LANES, ROWS = 8, 32
BLOCK = LANES * ROWS  # symbols that share a width: so many rows fill whole words at any width
WINDOW = 1024  # symbols that Huffman's code knows; any other is written out behind an escape
LIMIT = 11  # bits of its longest code: the table fits the first-level cache
STREAMS = 4
AHEAD = 3  # words behind the last full one of a stream: whatever the bytes, nothing is read beyond them


class Corrupt(ValueError):  # noqa: N818 - what the bytes are
    """These bytes are no frame."""


def encode(symbols: Codes, coder: int) -> Bytes:
    """A frame by the given coder; one that would be longer than the symbols themselves is raw.

    >>> frame = encode(np.array([7, -1, 7, 7], np.int32), HUFFMAN)
    >>> decode(frame).tolist(), NAMES[frame[0]]
    ([7, -1, 7, 7], 'raw')
    >>> len(encode(np.full(4096, 5, np.int32), FIXED))  # 16 blocks of width 0
    88
    """
    symbols = np.ascontiguousarray(symbols, np.int32)
    room = np.empty(_room(len(symbols)), np.uint8)
    size = 0
    if coder == FIXED:
        size = int(_pack(symbols, room))
    elif coder == HUFFMAN and len(symbols):
        size = int(_huffman(symbols, room))
    if not 0 < size < HEAD + symbols.nbytes:
        room[HEAD : HEAD + symbols.nbytes] = symbols.view(np.uint8)
        coder, size = RAW, HEAD + symbols.nbytes
    room[:4] = coder, 0, 0, 0
    room[4:HEAD] = np.array([len(symbols)], np.uint32).view(np.uint8)
    return room[:size]


def decode(frame: Bytes) -> Codes:
    """The symbols of a frame, in an array of one's own.

    Raises:
        Corrupt: too short, of a coder that there is not, or of a length that its head does not say.
    """
    if len(frame) < HEAD or frame[0] > HUFFMAN:
        raise Corrupt(f"a frame begins with its coder and its count, not with {bytes(frame[:HEAD])!r}")
    coder, count = int(frame[0]), int(frame[4:HEAD].view(np.uint32)[0])
    if coder == RAW:
        if len(frame) != HEAD + 4 * count:
            raise Corrupt(f"a raw frame of {count} symbols has {HEAD + 4 * count} bytes, not {len(frame)}")
        return frame[HEAD:].view(np.int32).copy()
    if coder == FIXED and len(frame) < HEAD + 5 * (-(-count // BLOCK)):
        raise Corrupt(f"a packed frame of {count} symbols is longer than {len(frame)} bytes")
    if coder == HUFFMAN and count > 8 * len(frame):
        raise Corrupt(f"a coded frame of {count} symbols has a bit for each, not {len(frame)} bytes")
    out = np.empty(count + BLOCK, np.int32)
    right = _unpack(frame, count, out) if coder == FIXED else _unhuffman(frame, count, out)
    if not right:
        raise Corrupt(f"a {NAMES[coder]} frame of {count} symbols does not end where it should")
    return out[:count]


def _room(count: int) -> int:
    return HEAD + 128 + WINDOW + 5 * (count + BLOCK)


# ------------------------------------------------------------------------------------------------------ packing


@njit(cache=True, nogil=True)
def _pack(symbols, out):  # type: ignore[no-untyped-def]
    """Widths of all blocks, their least symbols, then their rows; returns the bytes written."""
    count = len(symbols)
    blocks = (count + BLOCK - 1) // BLOCK
    at = HEAD + blocks
    at += (4 - at % 4) % 4  # words lie where words lie
    lows = out[at : at + 4 * blocks].view(np.int32)
    at += 4 * blocks
    block = np.empty(BLOCK, np.uint32)
    for b in range(blocks):
        start = b * BLOCK
        stop = min(start + BLOCK, count)
        low = high = symbols[start]
        for i in range(start, stop):
            low, high = min(low, symbols[i]), max(high, symbols[i])
        span, width = np.int64(high) - np.int64(low), 0
        while span >> width:
            width += 1
        out[HEAD + b] = width
        lows[b] = low
        if width == 0:
            continue
        for i in range(start, stop):
            block[i - start] = symbols[i] - low
        for i in range(stop - start, BLOCK):
            block[i] = 0
        words = out[at : at + 4 * LANES * (width + 1)].view(np.uint32)
        _rows_in(block, width, words)
        at += 4 * LANES * width
    return at


@njit(cache=True, nogil=True)
def _rows_in(block, width, words):  # type: ignore[no-untyped-def]
    words[:] = 0
    for row in range(ROWS):
        bit = row * width
        word, shift = LANES * (bit >> 5), np.uint32(bit & 31)
        for lane in range(LANES):
            words[word + lane] |= block[LANES * row + lane] << shift
        if shift + width > 32:
            left = np.uint32(32 - shift)
            for lane in range(LANES):
                words[word + LANES + lane] |= block[LANES * row + lane] >> left


@njit(cache=True, nogil=True)
def _unpack(frame, count, out):  # type: ignore[no-untyped-def]
    blocks = (count + BLOCK - 1) // BLOCK
    at = HEAD + blocks
    at += (4 - at % 4) % 4
    if at + 4 * blocks > len(frame):
        return False
    lows = frame[at : at + 4 * blocks].view(np.int32)
    at += 4 * blocks
    for b in range(blocks):
        width, start, low = np.int64(frame[HEAD + b]), b * BLOCK, lows[b]
        size = 4 * LANES * width
        if width > 32 or at + size > len(frame):
            return False
        if width == 0:
            for i in range(BLOCK):
                out[start + i] = low
        else:
            _rows_out(frame[at : at + size].view(np.uint32), width, low, out[start : start + BLOCK])
        at += size
    return at == len(frame)


@njit(cache=True, nogil=True)
def _rows_out(words, width, low, out):  # type: ignore[no-untyped-def]
    mask = np.uint32((np.int64(1) << width) - 1)
    for row in range(ROWS):
        bit = row * width
        word, shift = LANES * (bit >> 5), np.uint32(bit & 31)
        if shift + width > 32:
            left = np.uint32(32 - shift)
            for lane in range(LANES):
                both = (words[word + lane] >> shift) | (words[word + LANES + lane] << left)
                out[LANES * row + lane] = np.int32(both & mask) + low
        else:
            for lane in range(LANES):
                out[LANES * row + lane] = np.int32((words[word + lane] >> shift) & mask) + low


# ------------------------------------------------------------------------------------------------ Huffman's code


@njit(cache=True, nogil=True)
def lengths(counts, out):  # type: ignore[no-untyped-def]
    """Code lengths of symbols by their counts, none over LIMIT; symbols that never occur get 0."""
    used = np.flatnonzero(counts)
    n = len(used)
    out[:] = 0
    if n < 2:
        out[used] = 1
        return
    used = used[np.argsort(counts[used], kind="mergesort")]
    weights, parents = np.empty(2 * n - 1, np.int64), np.zeros(2 * n - 1, np.int64)
    weights[:n] = counts[used]
    leaf, inner = 0, n  # the rarest that have no parent yet; inner nodes come to be in the order of their weights
    for node in range(n, 2 * n - 1):
        weights[node] = 0
        for _ in range(2):
            if leaf < n and (inner == node or weights[leaf] <= weights[inner]):
                child, leaf = leaf, leaf + 1
            else:
                child, inner = inner, inner + 1
            weights[node] += weights[child]
            parents[child] = node
    depths, of_length = np.zeros(2 * n - 1, np.int64), np.zeros(64, np.int64)
    for node in range(2 * n - 3, -1, -1):
        depths[node] = depths[parents[node]] + 1
        if node < n:
            of_length[min(depths[node], 63)] += 1
    _shorten(of_length)
    k = 0
    for length in range(LIMIT, 0, -1):  # the rarest get the longest
        for _ in range(of_length[length]):
            out[used[k]] = length
            k += 1


@njit(cache=True, nogil=True)
def _shorten(of_length):  # type: ignore[no-untyped-def]
    """No code over LIMIT, and all of them still tell each other apart: Kraft's sum is one again."""
    for length in range(LIMIT + 1, 64):
        of_length[LIMIT] += of_length[length]
        of_length[length] = 0
    total = 0
    for length in range(1, LIMIT + 1):
        total += of_length[length] << (LIMIT - length)
    while total > 1 << LIMIT:
        of_length[LIMIT] -= 1
        for length in range(LIMIT - 1, 0, -1):
            if of_length[length]:
                of_length[length] -= 1
                of_length[length + 1] += 2
                break
        total -= 1


@njit(cache=True, nogil=True)
def _canonical(bits, codes):  # type: ignore[no-untyped-def]
    """Codes by length, then by symbol, with their bits reversed: streams are read from their lowest bit on."""
    code = 0
    for length in range(1, LIMIT + 1):
        for symbol in range(len(bits)):
            if bits[symbol] == length:
                turned = 0
                for k in range(length):
                    turned |= ((code >> k) & 1) << (length - 1 - k)
                codes[symbol] = turned
                code += 1
        code <<= 1


@njit(cache=True, nogil=True)
def window_of(symbols):  # type: ignore[no-untyped-def]
    """The first symbol that Huffman's code knows, and how many it does: all, or those around the middle of a few."""
    low = high = symbols[0]
    for symbol in symbols:
        low, high = min(low, symbol), max(high, symbol)
    if np.int64(high) - np.int64(low) < WINDOW:
        return np.int64(low), np.int64(high) - np.int64(low) + 1
    some = np.sort(symbols[:: max(1, len(symbols) // 512)])
    return np.int64(some[len(some) // 2]) - WINDOW // 2, np.int64(WINDOW)


@njit(cache=True, nogil=True)
def _huffman(symbols, out):  # type: ignore[no-untyped-def]
    """Window, code lengths in half bytes, where streams end, the streams, what was escaped; 0 if that is no gain."""
    count = len(symbols)
    base, size = window_of(symbols)
    counts = np.zeros(size + 1, np.int64)
    for symbol in symbols:
        k = np.int64(symbol) - base
        counts[np.uint64(k) if np.uint64(k) < np.uint64(size) else np.uint64(size)] += 1
    bits = np.empty(size + 1, np.int64)
    lengths(counts, bits)
    total = 32 * counts[size]
    for k in range(size + 1):
        total += counts[k] * bits[k]
    if total > 30 * count:
        return 0
    head = out[HEAD : HEAD + 36].view(np.int32)
    head[0], head[1], head[2] = np.int32(base), np.int32(size), np.int32(counts[size])
    at = np.int64(HEAD + 36)
    for k in range(0, size + 1, 2):
        out[at] = bits[k] | (bits[k + 1] << 4 if k < size else 0)
        at += 1
    at += (4 - at % 4) % 4
    codes = np.zeros(size + 1, np.int64)
    _canonical(bits, codes)
    table = codes | (bits << 16)
    part = (count + STREAMS - 1) // STREAMS
    for s in range(STREAMS):
        words = out[at : at + 4 * ((len(out) - at) // 4)].view(np.uint32)
        at += 4 * _write(symbols[min(s * part, count) : min((s + 1) * part, count)], base, size, table, words)
        head[3 + s] = at
    if counts[size]:
        rest = out[at : at + 4 * counts[size]].view(np.int32)
        k = 0
        for symbol in symbols:
            if np.uint64(np.int64(symbol) - base) >= np.uint64(size):
                rest[k] = symbol
                k += 1
        at += 4 * k
    return at


@njit(cache=True, nogil=True)
def _write(symbols, base, size, table, words):  # type: ignore[no-untyped-def]
    """One stream; returns its words, AHEAD of which are there for the reader to look beyond the end."""
    held, fill, at = np.uint64(0), np.uint64(0), np.int64(0)
    for symbol in symbols:
        k = np.uint64(np.int64(symbol) - base)
        entry = table[k if k < np.uint64(size) else np.uint64(size)]
        held |= np.uint64(entry & 0xFFFF) << fill
        fill += np.uint64(entry >> 16)
        words[at] = np.uint32(held & np.uint64(0xFFFFFFFF))
        full = fill >> np.uint64(5)
        at += np.int64(full)
        held >>= full << np.uint64(5)
        fill &= np.uint64(31)
    words[at] = np.uint32(held & np.uint64(0xFFFFFFFF))
    words[at + 1 : at + AHEAD] = 0
    return at + AHEAD


@njit(cache=True, nogil=True)
def _table(bits, base):  # type: ignore[no-untyped-def]
    """For every LIMIT bits that may come: the symbol they begin with, and its length; Kraft's sum says if it is one."""
    codes = np.zeros(len(bits), np.int64)
    _canonical(bits, codes)
    symbol_of, length_of = np.zeros(1 << LIMIT, np.int32), np.ones(1 << LIMIT, np.int32)
    total = 0
    for k in range(len(bits)):
        if bits[k] > LIMIT:
            return symbol_of, length_of, False
        if bits[k]:
            total += 1 << (LIMIT - bits[k])
            if total > 1 << LIMIT:
                return symbol_of, length_of, False
            for code in range(codes[k], 1 << LIMIT, 1 << bits[k]):
                symbol_of[code], length_of[code] = np.int32(base + k), bits[k]
    return symbol_of, length_of, True


@njit(cache=True, nogil=True)
def _unhuffman(frame, count, out):  # type: ignore[no-untyped-def]
    if len(frame) < HEAD + 36:
        return False
    head = frame[HEAD : HEAD + 36].view(np.int32)
    base, size, escaped = np.int64(head[0]), np.int64(head[1]), np.int64(head[2])
    at = np.int64(HEAD + 36)
    if size < 1 or size > WINDOW or escaped < 0 or at + size // 2 + 1 > len(frame):
        return False
    bits = np.empty(size + 1, np.int64)
    for k in range(size + 1):
        bits[k] = (frame[at + k // 2] >> (4 * (k % 2))) & 15
    at += size // 2 + 1
    at += (4 - at % 4) % 4
    symbol_of, length_of, right = _table(bits, base)
    if not right:
        return False
    begins = np.empty(STREAMS, np.int64)
    for s in range(STREAMS):
        begins[s] = at
        if head[3 + s] < at + 4 * AHEAD or head[3 + s] > len(frame) or head[3 + s] % 4:
            return False
        at = np.int64(head[3 + s])
    if at + 4 * escaped != len(frame):
        return False
    part = (count + STREAMS - 1) // STREAMS
    words = frame[: 4 * (len(frame) // 4)].view(np.uint32)
    ends = np.empty(STREAMS, np.int64)
    for s in range(STREAMS):
        ends[s] = 32 * (head[3 + s] // 4 - AHEAD)
    if not _read(words, begins // 4 * 32, ends, part, count, symbol_of, length_of, out):
        return False
    if escaped:
        return _restore(out[:count], np.int32(base + size), frame[at:].view(np.int32))
    return True


@njit(cache=True, nogil=True, inline="always")
def _peek(words, bit):  # type: ignore[no-untyped-def]
    word = bit >> np.uint64(5)
    both = np.uint64(words[word]) | (np.uint64(words[word + np.uint64(1)]) << np.uint64(32))
    return both >> (bit & np.uint64(31))


@njit(cache=True, nogil=True)
def _read(words, begins, ends, part, count, symbol_of, length_of, out):  # type: ignore[no-untyped-def]
    """Four streams at once: none of them waits for the look-up of another."""
    b0, b1, b2, b3 = np.uint64(begins[0]), np.uint64(begins[1]), np.uint64(begins[2]), np.uint64(begins[3])
    e0, e1, e2, e3 = np.uint64(ends[0]), np.uint64(ends[1]), np.uint64(ends[2]), np.uint64(ends[3])
    mask = np.uint64((1 << LIMIT) - 1)
    last = count - 3 * part  # symbols of the last stream, the shortest; below 0 where there are too few
    for i in range(max(last, 0)):
        k0, k1 = _peek(words, b0) & mask, _peek(words, b1) & mask
        k2, k3 = _peek(words, b2) & mask, _peek(words, b3) & mask
        out[i], out[part + i] = symbol_of[k0], symbol_of[k1]
        out[2 * part + i], out[3 * part + i] = symbol_of[k2], symbol_of[k3]
        b0 = min(b0 + np.uint64(length_of[k0]), e0 + np.uint64(32))
        b1 = min(b1 + np.uint64(length_of[k1]), e1 + np.uint64(32))
        b2 = min(b2 + np.uint64(length_of[k2]), e2 + np.uint64(32))
        b3 = min(b3 + np.uint64(length_of[k3]), e3 + np.uint64(32))
    b = np.array([b0, b1, b2, b3])
    for s in range(STREAMS):
        begin, stop = s * part, min((s + 1) * part, count)
        for i in range(min(begin + max(last, 0), count), stop):
            k = _peek(words, b[s]) & mask
            out[i] = symbol_of[k]
            b[s] = min(b[s] + np.uint64(length_of[k]), np.uint64(ends[s]) + np.uint64(32))
        if np.int64(b[s]) > ends[s] + 31:
            return False
    return True


@njit(cache=True, nogil=True)
def _restore(out, mark, rest):  # type: ignore[no-untyped-def]
    k = 0
    for i in range(len(out)):
        if out[i] == mark:
            if k == len(rest):
                return False
            out[i] = rest[k]
            k += 1
    return k == len(rest)
