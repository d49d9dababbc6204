"""Division by a whole shifted inverse as its paper's text has it, on Python's integers: slow, and nothing cut short."""

from __future__ import annotations


def digits(x: int, width: int) -> int:
    """How many digits of so many bits a number has."""
    return -(-x.bit_length() // width)


def shinv(v: int, h: int, width: int, guard: int = 2) -> int:
    """About B^h / v for B = 2^width, B^2 <= v < B^h, v no power of B: two digits, then one less than twice as many."""
    base, k = 1 << width, digits(v, width) - 1
    top, length = v >> (width * (k - 2)), 2
    w = (base**4 - top) // (top + 1) + 1  # without the last 1 errors grow from step to step
    if h - k <= length:
        return w >> (width * (length - h + k))
    w <<= width * guard
    while h - k > length:
        n = min(h - k + 1 - length, length)
        s = max(0, k - 2 * length + 1 - guard)
        w = step(k + length + n - s + guard, v >> (width * s), w, n, width)
        length += n - 1
    return w >> (width * guard)


def step(h: int, v: int, w: int, n: int, width: int) -> int:
    """w B^n (1 + d) for d = 1 - v w / B^(h - n), rounded down, one digit dropped."""
    t = (1 << (width * (h - n))) - v * w
    moved = (w * abs(t)) >> (width * (h - 2 * n))
    return ((w << (width * n)) + (moved if t >= 0 else -moved - 1)) >> width


def divide(u: int, v: int, width: int, guard: int = 2) -> tuple[int, int, int]:
    """Quotient, remainder, and by how much the quotient was too small before the correction."""
    if u < v:
        return 0, u, 0
    if digits(v, width) <= 2:  # the inverse starts from three digits
        lift = width * (3 - digits(v, width))
        q, r, off = divide(u << lift, v << lift, width, guard)
        return q, r >> lift, off
    k = digits(v, width) - 1
    if v == 1 << (width * k):
        return u >> (width * k), u & (v - 1), 0
    h = digits(u, width)
    q = (u * shinv(v, h, width, guard)) >> (width * h)
    r, off = u - q * v, 0
    while r < 0 and off > -9:
        q, r, off = q - 1, r + v, off - 1
    while r >= v and off < 9:
        q, r, off = q + 1, r - v, off + 1
    return q, r, off
