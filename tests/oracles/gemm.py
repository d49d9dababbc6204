"""The matrix product by its definition, in whole numbers; and a scheme by its definition, block by block."""

from __future__ import annotations

from typing import Any


def product(a: list[list[int]], b: list[list[int]]) -> list[list[int]]:
    """Row by column."""
    return [[sum(x * y for x, y in zip(row, col, strict=True)) for col in zip(*b, strict=True)] for row in a]


def by_scheme(a: list[list[int]], b: list[list[int]], scheme: Any) -> list[list[int]]:
    """An m x k times k x n product of single entries by a scheme <m,k,n;r>: its r products, added up."""
    flat_a, flat_b = [x for row in a for x in row], [x for row in b for x in row]
    products = [
        sum(int(f) * x for f, x in zip(u, flat_a, strict=True))
        * sum(int(f) * x for f, x in zip(v, flat_b, strict=True))
        for u, v in zip(scheme.u, scheme.v, strict=True)
    ]
    flat = [sum(int(f) * p for f, p in zip(row, products, strict=True)) for row in scheme.w]
    return [flat[i * scheme.n : (i + 1) * scheme.n] for i in range(scheme.m)]
