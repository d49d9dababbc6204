"""Kernels: point clouds, keys, matrices, caches of attention."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from random import Random

from making.formats import Rows, makes, npy, npz, table


def surface(random: Random, points: int = 6000) -> Iterator[tuple[float, float, float]]:
    """A ground with a house on it."""
    for _ in range(points):
        x, y = random.uniform(-20, 20), random.uniform(-20, 20)
        z = random.uniform(0, 6) if max(abs(x), abs(y)) < 5 else 0.2 * random.random()
        yield x, y, z


@makes("scan.ply")
def scan(random: Random) -> bytes:
    """A point cloud."""
    cloud = [struct.pack("<3f", *point) for point in surface(random)]
    head = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(cloud)}\n"
    return (head + "".join(f"property float {axis}\n" for axis in "xyz") + "end_header\n").encode() + b"".join(cloud)


@makes("keys.npy")
def keys(random: Random) -> bytes:
    """Milliseconds that 8,000 requests took, a few of them very long."""
    return npy([round(random.lognormvariate(4, 1), 3) for _ in range(8000)])


@makes("matrix.mtx")
def matrix(random: Random) -> str:
    """A sparse matrix of 500 rows: most short, a few long, some empty; MatrixMarket."""
    entries = set()
    for row in range(500):
        length = 0 if random.random() < 0.1 else min(400, int(2 + random.paretovariate(0.9)))
        entries |= {(row + 1, 1 + int(500 * random.random() ** 2)) for _ in range(length)}
    lines = [f"{row} {col} {random.uniform(-1, 1):.4f}" for row, col in sorted(entries)]
    head = ["%%MatrixMarket matrix coordinate real general", f"500 500 {len(entries)}"]
    return "\n".join([*head, *lines]) + "\n"


@makes("shapes.csv")
def shapes(_: Random) -> str:
    """Matrix products: rows, depth, columns and dtype of a few layers."""
    sizes = ((512, 768, 3072), (512, 3072, 768), (1024, 1024, 1024), (1000, 1111, 777))
    return table([["m", "k", "n", "dtype"], *([*size, "f32"] for size in sizes), [640, 640, 640, "f64"]])


@makes("pairs.csv")
def pairs(random: Random) -> str:
    """Sixty pairs of whole numbers to divide, decimal and hexadecimal, of 60 to 20,000 bits, a few below zero."""
    rows: Rows = [["u", "v"]]
    for _ in range(60):
        bits = int(2 ** random.uniform(6, 14.3))
        u, v = random.getrandbits(bits) * random.choice((1, 1, 1, -1)), random.getrandbits(bits // 2) + 1
        rows.append([hex(u), hex(v)] if bits > 500 else [u, v])
    return table(rows)


@makes("kv.npz")
def kv(random: Random) -> bytes:
    """A layer's KV cache and queries of 48 steps: two heads look up scattered tokens, six read passages."""
    tokens, width, arrays = 672, 8, {"keys": [], "values": [], "queries": []}  # type: ignore[var-annotated]
    meant: list[list[list[float]]] = []
    for head in range(8):
        about = [[random.gauss(0, 1) for _ in range(width)] for _ in range(10)]
        about = [[x / math.hypot(*one) for x in one] for one in about]
        meant.append(about)
        if head in (2, 5):
            topic = [token % 10 if token < 120 else -1 for token in range(tokens)]
            random.shuffle(topic)
        else:
            topic = [token // 48 if token < 480 else -1 for token in range(tokens)]
        for one in topic:
            arrays["keys"] += [3 * (about[one][c] if one >= 0 else 0) + random.gauss(0, 0.5) for c in range(width)]
            arrays["values"] += [random.gauss(0, 1) for _ in range(width)]
    for _ in range(48):
        for about in meant:
            asked = random.choice(about)
            for _ in range(2):  # queries that share a head look for the same
                arrays["queries"] += [8 * x + random.gauss(0, 0.3) for x in asked]
    shapes = {"keys": (8, tokens, width), "values": (8, tokens, width), "queries": (48, 16, width)}
    return npz({name: npy(flat, shapes[name], "e") for name, flat in arrays.items()})


@makes("latents.npz")
def latents(random: Random) -> bytes:
    """Two sequences of an MLA cache in half precision, the second shorter with nothing (NaN) after it, and 16 heads."""
    lengths, longest, heads = (40, 33), 40, 16
    cache = [random.gauss(0, 1) if token < length else math.nan
             for length in lengths for token in range(longest) for _ in range(576)]  # fmt: skip
    query = [random.gauss(0, 1) for _ in range(2 * heads * 576)]
    return npz({
        "latent": npy(cache, (2, longest, 576), "e"), "query": npy(query, (2, heads, 576), "e"),
        "lengths": npy(list(lengths), kind="i"),
    })  # fmt: skip
