"""Products and quotients of rows of limbs on the CPU: the same steps as divide.cu, a pair a thread.

Products are classical where they are short, and transforms of double precision where rounding is proven exact: digits
of 16 bits up to 2^18 bits, of 8 bits beyond. A division is Newton's iteration for a whole shifted inverse
w = B^(k + p) / v (B = 2^32; v has k + 1 limbs), a product u w, and a remainder that tells by how much the quotient is
off: less than one up or down, as `inverse` keeps w right to 2^-(32 m + 4) of itself for m limbs of the quotient.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import prange

from assay.kernels.bigint_div.layout import BLOCK, SHORT, SPILL
from assay.sim.compiled import njit

LOW = np.int64(0xFFFFFFFF)
CLASSICAL = 160  # limbs of a product up to which the classical one is taken: an estimate, other values were not tried
PRODUCTS, POINTS, MACS = 0, 1, 2  # what is counted of a pair: products, limbs of their transforms, products of limbs


# ------------------------------------------------------------------------------------------------ transforms


@njit(cache=True)
def _odd(points):
    """Whether the logarithm of a power of two is odd."""
    levels = 0
    while points > 1:
        points //= 2
        levels += 1
    return levels & 1 == 1


@njit(cache=True)
def down(re, im, rr, ri):
    """From digits to values, two levels at a time: node n's root is rr[n] + i ri[n], a right child's i times that."""
    points, node = len(re), 1
    if _odd(points):
        half = points // 2
        for i in range(half):
            x, y = re[i + half] * rr[1] - im[i + half] * ri[1], re[i + half] * ri[1] + im[i + half] * rr[1]
            re[i + half], im[i + half] = re[i] - x, im[i] - y
            re[i], im[i] = re[i] + x, im[i] + y
        node = 2
    while node < points:
        s = points // (4 * node)
        for b in range(node):
            wr, wi, xr, xi = rr[node + b], ri[node + b], rr[2 * (node + b)], ri[2 * (node + b)]
            for i in range(4 * s * b, 4 * s * b + s):
                j, k, m = i + s, i + 2 * s, i + 3 * s
                ar, ai = re[k] * wr - im[k] * wi, re[k] * wi + im[k] * wr
                br, bi = re[m] * wr - im[m] * wi, re[m] * wi + im[m] * wr
                pr, pi, qr, qi = re[i] + ar, im[i] + ai, re[j] + br, im[j] + bi
                ur, ui, vr, vi = re[i] - ar, im[i] - ai, re[j] - br, im[j] - bi
                cr, ci = qr * xr - qi * xi, qr * xi + qi * xr
                dr, di = vr * xr - vi * xi, vr * xi + vi * xr
                re[i], im[i], re[j], im[j] = pr + cr, pi + ci, pr - cr, pi - ci
                re[k], im[k], re[m], im[m] = ur - di, ui + dr, ur + di, ui - dr
        node *= 4


@njit(cache=True)
def up(re, im, rr, ri):
    """Back from values to digits, times the number of points."""
    points = len(re)
    node = points // 4
    while node >= 1:
        s = points // (4 * node)
        for b in range(node):
            wr, wi, xr, xi = rr[node + b], ri[node + b], rr[2 * (node + b)], ri[2 * (node + b)]
            for i in range(4 * s * b, 4 * s * b + s):
                j, k, m = i + s, i + 2 * s, i + 3 * s
                pr, pi, cr, ci = re[i] + re[j], im[i] + im[j], re[i] - re[j], im[i] - im[j]
                ur, ui, dr, di = re[k] + re[m], im[k] + im[m], im[k] - im[m], re[m] - re[k]  # times -i
                qr, qi = cr * xr + ci * xi, ci * xr - cr * xi
                vr, vi = dr * xr + di * xi, di * xr - dr * xi
                re[i], im[i], re[j], im[j] = pr + ur, pi + ui, qr + vr, qi + vi
                ar, ai, br, bi = pr - ur, pi - ui, qr - vr, qi - vi
                re[k], im[k] = ar * wr + ai * wi, ai * wr - ar * wi
                re[m], im[m] = br * wr + bi * wi, bi * wr - br * wi
        node //= 4
    if _odd(points):
        half = points // 2
        for i in range(half):
            x, y = re[i] - re[i + half], im[i] - im[i + half]
            re[i], im[i] = re[i] + re[i + half], im[i] + im[i + half]
            re[i + half], im[i + half] = x * rr[1] + y * ri[1], y * rr[1] - x * ri[1]


@njit(cache=True)
def _digits(re, im, a, na, signed, width):
    """A number as digits in [-2^(width-1), 2^(width-1)]; the upper half imaginary; beyond, they return with minus."""
    points, per, half = len(re), 32 // width, 1 << (width - 1)
    re[:] = 0.0
    im[:] = 0.0
    carry = 0
    for i in range(per * na + 1):
        if i < per * na:
            d = np.int64(a[i // per] >> np.uint32(width * (i % per))) & (2 * half - 1)
        elif signed:
            break
        else:
            d = 0
        digit = d - (2 * half if d >= half else 0) + carry
        carry = 1 if d >= half else 0
        at = i % (2 * points)
        if (i // (2 * points)) & 1:
            digit = -digit
        if at < points:
            re[at] += digit
        else:
            im[at - points] += digit


# ------------------------------------------------------------------------------------------------ products


@njit(cache=True)
def _from(power, number, k):
    """Limb k of what a product is taken from: a power of B, or a number."""
    if power >= 0:
        return np.int64(1) if k == power else np.int64(0)
    return np.int64(number[k]) if k < len(number) else np.int64(0)


@njit(cache=True)
def classical(out, length, a, na, b, nb):
    """The low `length` limbs of a * b, a row at a time; returns how many limbs were multiplied."""
    out[:length] = 0
    macs = 0
    for i in range(min(na, length)):
        x = np.uint64(a[i])
        if x == 0:
            continue
        carry = np.uint64(0)
        end = min(nb, length - i)
        for j in range(end):
            t = x * np.uint64(b[j]) + np.uint64(out[i + j]) + carry
            out[i + j] = np.uint32(t & np.uint64(LOW))
            carry = t >> np.uint64(32)
        macs += end
        k = i + end
        while carry and k < length:
            t = np.uint64(out[k]) + carry
            out[k] = np.uint32(t & np.uint64(LOW))
            carry = t >> np.uint64(32)
            k += 1
    return macs


@njit(cache=True)
def _direct(out, length, a, na, b, nb, signed, power, number):
    """`residue` modulo B^length, by the classical product."""
    macs = classical(out, length, a, na, b, nb)
    if signed and b[nb - 1] >> np.uint32(31):
        borrow = np.int64(0)
        for k in range(nb, length):
            v = np.int64(out[k]) - (np.int64(a[k - nb]) if k - nb < na else 0) + borrow
            out[k] = np.uint32(v & LOW)
            borrow = v >> 32
    if power >= 0 or len(number):
        borrow = np.int64(0)
        for k in range(length):
            v = _from(power, number, k) - np.int64(out[k]) + borrow
            out[k] = np.uint32(v & LOW)
            borrow = v >> 32
    return macs


@njit(cache=True)
def residue(out, length, a, na, b, nb, signed, power, number, rr, ri, tally):
    """out = a * b, or what is left of a power of B (power >= 0) or of a number (not empty) after it.

    A signed number of `length` limbs, which it is known to fit into with a limb to spare; b may be signed. Modulo
    B^N + 1 by transforms and modulo B^e directly, so that N + e limbs are known: a result a little longer than a power
    of two, or of which the upper limbs cancel, takes the shorter transform.
    """
    tally[PRODUCTS] += 1
    if length <= CLASSICAL:
        tally[MACS] += _direct(out, length, a, na, b, nb, signed, power, number)
        return
    n = 64
    while n + SPILL < max(length, na, nb):
        n *= 2
    e = max(2, length - n)
    tally[POINTS] += n
    width = 16 if n <= SHORT else 8
    per = 32 // width
    points = n * per // 2
    lows = np.empty(e, np.uint32)
    tally[MACS] += _direct(lows, e, a, na, b, nb, signed, power, number)
    re, im, re2, im2 = np.empty(points), np.empty(points), np.empty(points), np.empty(points)
    _digits(re, im, a, na, False, width)
    _digits(re2, im2, b, nb, signed, width)
    down(re, im, rr, ri)
    down(re2, im2, rr, ri)
    for i in range(points):
        re[i], im[i] = re[i] * re2[i] - im[i] * im2[i], re[i] * im2[i] + im[i] * re2[i]
    up(re, im, rr, ri)
    _round(out, length, re, im, n, per, width, lows, power, number)


@njit(cache=True)
def _round(out, length, re, im, n, per, width, lows, power, number):
    """Sums to limbs, then the multiple of B^N + 1 by which they miss the number whose low limbs are known."""
    e, points, scale = len(lows), len(re), 1.0 / len(re)
    taken = power >= 0 or len(number) > 0
    whole = np.empty(n + e, np.uint32)
    carry = np.int64(0)
    for k in range(n):
        s = np.int64(0)
        for j in range(per - 1, -1, -1):
            at = per * k + j
            s = (s << width) + np.int64(np.rint((re[at] if at < points else im[at - points]) * scale))
        if taken:
            s = -s
            if power >= 0:
                if power % n == k:
                    s += -1 if (power // n) & 1 else 1
            else:
                for j in range(k, len(number), 2 * n):
                    s += np.int64(number[j])
                for j in range(k + n, len(number), 2 * n):
                    s -= np.int64(number[j])
        s += carry
        whole[k] = np.uint32(s & LOW)
        carry = s >> 32
    add = np.empty(e, np.int64)
    borrow = np.int64(0)
    for k in range(e):
        v = np.int64(lows[k]) - np.int64(whole[k]) + borrow
        add[k] = v & LOW
        borrow = v >> 32
    beyond = LOW if add[e - 1] >> 31 else np.int64(0)  # a negative multiple goes on in ones
    over = carry
    carry = np.int64(0)
    for k in range(length):
        v = carry + (add[k] if k < e else beyond)
        if k < n:
            v += np.int64(whole[k])
        else:
            v += add[k - n] + (over if k == n else 0)
        out[k] = np.uint32(v & LOW)
        carry = v >> 32


# ------------------------------------------------------------------------------------------------ division


@njit(cache=True)
def _limbs_for(right):
    """Limbs that hold an inverse of so many right bits: the last limb and its rounding lie below them."""
    return max(3, (right + 4 + 31) // 32 + 1)


@njit(cache=True)
def _first(v, k, p):
    """(2^128 - 1) / the upper 64 bits of v, bit by bit, as an inverse of p limbs: 62 bits are right."""
    one, wide = np.uint64(1), np.uint64(32)
    shift = np.uint64(0)
    while not (v[k] << np.uint32(shift)) >> np.uint32(31) & np.uint32(1):
        shift += one
    d = np.uint64(v[k]) << wide | np.uint64(v[k - 1] if k > 0 else 0)
    if shift:
        d = d << shift | np.uint64(v[k - 2] if k > 1 else 0) >> (wide - shift)
    rest, q = ~d, np.uint64(0)
    for _ in range(64):
        beyond = rest >> np.uint64(63)
        rest = rest << one | one
        q <<= one
        if beyond or rest >= d:
            rest -= d
            q |= one
    w = np.zeros(p + 1, np.uint32)
    w[p - 3] = np.uint32((q << shift) & np.uint64(LOW))
    w[p - 2] = np.uint32((q << shift) >> wide)
    w[p - 1] = np.uint32(one << shift | (q >> (np.uint64(64) - shift) if shift else np.uint64(0)))
    return w


@njit(cache=True)
def inverse(v, k, wanted, rr, ri, tally):
    """About B^(k + p) / v for v of k + 1 limbs, p + 1 limbs long, off by less than 2^-wanted of itself.

    A step takes w to w (1 + d) for d = 1 - v w / B^(k + p), of which the upper limbs are known to vanish: right bits
    double, less one for what is cut off (limbs of v beyond the new length, limbs of d below it, the last rounding).
    """
    none = np.empty(0, np.uint32)
    right, steps = wanted, 0
    while right > 62:
        right = (right + 2) >> 1
        steps += 1
    p = _limbs_for(right)
    w = _first(v, k, p)
    for step in range(steps - 1, -1, -1):
        new = wanted
        for _ in range(step):
            new = (new + 2) >> 1
        p2 = _limbs_for(new)
        k2 = min(k, p2)
        nt = k2 + p - right // 32 + 1
        cut = max(0, k2 + p - p2)
        shift, nx = k2 + 2 * p - p2 - cut, p + nt - cut + 1
        t, x = np.empty(nt, np.uint32), np.empty(nx, np.uint32)
        residue(t, nt, v[k - k2 :], k2 + 1, w, p + 1, False, k2 + p, none, rr, ri, tally)
        residue(x, nx, w, p + 1, t[cut:], nt - cut, True, -1, none, rr, ri, tally)
        beyond = LOW if x[nx - 1] >> np.uint32(31) else np.int64(0)
        grown = np.empty(p2 + 1, np.uint32)
        carry = np.int64(0)
        for j in range(p2 + 1):
            at = j - (p2 - p)
            s = carry + (np.int64(x[j + shift]) if j + shift < nx else beyond)
            if 0 <= at <= p:
                s += np.int64(w[at])
            grown[j] = np.uint32(s & LOW)
            carry = s >> 32
        w, p, right = grown, p2, new
    return w


@njit(cache=True)
def _correct(rest, v, k):
    """Bring a remainder into [0, v); returns by how much the quotient was too small (negative: too large)."""
    missing = 0
    while rest[k + 2] >> np.uint32(31):
        carry = np.int64(0)
        for i in range(k + 3):
            s = np.int64(rest[i]) + (np.int64(v[i]) if i <= k else 0) + carry
            rest[i] = np.uint32(s & LOW)
            carry = s >> 32
        missing -= 1
    while True:
        larger = rest[k + 1] > 0 or rest[k + 2] > 0
        if not larger:
            i = k
            while i >= 0 and rest[i] == v[i]:
                i -= 1
            larger = i < 0 or rest[i] > v[i]
        if not larger:
            return missing
        carry = np.int64(0)
        for i in range(k + 3):
            s = np.int64(rest[i]) - (np.int64(v[i]) if i <= k else 0) + carry
            rest[i] = np.uint32(s & LOW)
            carry = s >> 32
        missing += 1


@njit(cache=True)
def used(a):
    """How many limbs of a number are in use."""
    n = len(a)
    while n and a[n - 1] == 0:
        n -= 1
    return n


@njit(cache=True)
def divide_pair(u, v, q, r, rr, ri, tally, fixes):
    """q = u // v and r = u % v, by blocks of limbs of the quotient, each with the remainder of the one before."""
    q[:] = 0
    r[:] = 0
    h, k = used(u), used(v) - 1
    if h <= k:
        r[:h] = u[:h]
        return
    none = np.empty(0, np.uint32)
    digits, cap = h - k, max(k + 2, BLOCK)
    blocks = (digits + cap - 1) // cap
    m = (digits + blocks - 1) // blocks
    w = inverse(v, k, 32 * m + 4, rr, ri, tally)
    p = len(w) - 1
    rest, cut = np.zeros(k + 3, np.uint32), max(0, k - 1)
    x, whole = np.empty(2 * m + 16, np.uint32), np.empty(m + k + 1, np.uint32)
    for block in range(blocks - 1, -1, -1):
        dividend = u[m * block : h]
        if block < blocks - 1:
            whole[:m] = u[m * block : m * block + m]
            whole[m:] = rest[: k + 1]
            dividend = whole
        hd = len(dividend)
        nd, shift, here = hd - cut, k + p - cut, min(m, hd - k)
        residue(x, nd + p + 2, dividend[cut:], nd, w, p + 1, False, -1, none, rr, ri, tally)
        guess = x[shift:]
        residue(rest, k + 3, guess, here + 1, v, k + 1, False, -1, dividend, rr, ri, tally)
        missing = _correct(rest, v, k)
        fixes[0], fixes[1] = min(fixes[0], missing), max(fixes[1], missing)
        carry = np.int64(missing)
        for i in range(here):
            s = np.int64(guess[i]) + carry
            q[m * block + i] = np.uint32(s & LOW)
            carry = s >> 32
    r[: k + 1] = rest[: k + 1]


@njit(cache=True, parallel=True)
def divide_rows(u, v, q, r, rr, ri, tally, fixes):
    """Each row of u by that of v."""
    for i in prange(len(u)):
        divide_pair(u[i], v[i], q[i], r[i], rr, ri, tally[i], fixes[i])


@njit(cache=True, parallel=True)
def multiply_rows(a, b, out, rr, ri, tally):
    """Each row of a by that of b: out has the limbs of both."""
    for i in prange(len(a)):
        x = np.empty(a.shape[1] + b.shape[1] + 1, np.uint32)
        none = np.empty(0, np.uint32)
        residue(x, len(x), a[i], a.shape[1], b[i], b.shape[1], False, -1, none, rr, ri, tally[i])
        out[i] = x[:-1]
