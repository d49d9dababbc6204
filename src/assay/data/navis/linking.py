"""A new node's edges, and those back to it: compiled, on lists in memory, with what the codes stand for as vectors."""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np

from assay.data.vectors.graph import prune
from assay.data.vectors.kernels import FAST, squared
from assay.sim.compiled import njit


@njit(cache=True, nogil=True, fastmath=FAST)
def prepare(centres, query):
    """(distances of the query's parts to all centres; the query's own code)."""
    parts, count, columns = centres.shape
    table, code = np.empty((parts, count), np.float32), np.empty(parts, np.uint8)
    for p in range(parts):
        least = np.float32(np.inf)
        for c in range(count):
            total = np.float32(0)
            for j in range(min(columns, len(query) - p * columns)):
                d = query[p * columns + j] - centres[p, c, j]
                total += d * d
            table[p, c] = total
            if total < least:
                least = total
                code[p] = c
    return table, code


@njit(cache=True)
def decoded(centres, codes, nodes, width):
    """The vectors that nodes' codes stand for."""
    parts, _, columns = centres.shape
    out = np.empty((len(nodes), parts * columns), np.float32)
    for i in range(len(nodes)):
        for p in range(parts):
            out[i, p * columns : (p + 1) * columns] = centres[p, codes[nodes[i], p]]
    return out[:, :width].copy()


@njit(cache=True)
def _own(fresh, fresh_row, fresh_node, used, node, listed):
    """The row of a node's list among the changed ones, copied there if it was not."""
    row = fresh_row[node]
    if row < 0:
        row = used
        used += 1
        fresh[row] = listed
        fresh_row[node], fresh_node[row] = row, node
    return row, used


@njit(cache=True)
def _point(fresh, row, v, node, parents, centres, codes, width, alpha_squared):
    """Let v point to the node; where its list is full, prune it, and never its children."""
    degree = fresh[row, 0]
    for j in range(1, 1 + degree):
        if fresh[row, j] == node:
            return
    if degree < fresh.shape[1] - 1:
        fresh[row, 0] = degree + 1
        fresh[row, 1 + degree] = node
        return
    both = np.empty(degree + 1, np.int32)
    both[:degree] = fresh[row, 1:]
    both[degree] = node
    some = decoded(centres, codes, both, width)
    own = decoded(centres, codes, np.array([v], np.int32), width)[0]
    far, keep = np.empty(degree + 1, np.float32), np.empty(degree + 1, np.bool_)
    for i in range(degree + 1):
        far[i] = squared(some[i], own)
        keep[i] = parents[both[i]] == v
    kept = prune(some, far, np.argsort(far), alpha_squared, keep, degree)
    fresh[row, 0] = len(kept)
    for i in range(len(kept)):
        fresh[row, 1 + i] = both[kept[i]]


@njit(cache=True)
def link(
    node, vector, near, some, lists, fresh, fresh_row, fresh_node, used, parents, children, centres, codes,
    alpha_squared,
):  # fmt: skip
    """Choose a node's neighbours among those near and point both ways.

    Returns (rows used for changed lists, the neighbours, nearest first); no neighbours where none can be its parent.
    """
    degree = fresh.shape[1] - 1
    far = np.empty(len(near), np.float32)
    for i in range(len(near)):
        far[i] = squared(some[i], vector)
    order = np.argsort(far)
    kept = prune(some, far, order, alpha_squared, np.zeros(len(near), np.bool_), degree)
    giver = -1
    for most in (degree // 2, degree - 1):
        for a in kept:
            if giver < 0 and children[near[a]] < most:
                giver = a
        for a in order:
            if giver < 0 and children[near[a]] < most:
                giver = a
    chosen = near[kept]
    if giver < 0:
        return used, chosen[:0]
    parents[node] = near[giver]
    children[near[giver]] += 1
    row, used = _own(fresh, fresh_row, fresh_node, used, node, fresh[0])
    fresh[row] = 0
    fresh[row, 0] = len(kept)
    fresh[row, 1 : 1 + len(kept)] = chosen
    for a in kept:
        row, used = _own(fresh, fresh_row, fresh_node, used, near[a], lists[a])
        _point(fresh, row, near[a], node, parents, centres, codes, len(vector), alpha_squared)
    row, used = _own(fresh, fresh_row, fresh_node, used, near[giver], lists[giver])
    _point(fresh, row, near[giver], node, parents, centres, codes, len(vector), alpha_squared)
    return used, chosen


@njit(cache=True)
def patch(pages, first, nodes, rows, fresh, slots, per, words, list_at, span):
    """Lay changed lists into page images; `first[i]` is the row of `pages` where node i's record group begins."""
    for i in range(len(nodes)):
        at = (slots[nodes[i]] % per) * words + list_at
        flat = pages[first[i] : first[i] + span].reshape(-1)
        flat[at : at + fresh.shape[1]] = fresh[rows[i]]


@njit(cache=True)
def patch_vectors(pages, first, slots, vectors, per, words, span):
    """Lay new vectors into page images."""
    for i in range(len(vectors)):
        at = (slots[i] % per) * words
        flat = pages[first[i] : first[i] + span].reshape(-1)
        flat[at : at + vectors.shape[1]] = vectors[i].view(np.int32)
