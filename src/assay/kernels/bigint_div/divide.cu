// Division of big integers by a whole shifted inverse, a pair a block: Newton's iteration on whole numbers, one product,
// and a last correction.
//
// Compiled by NVRTC on a GPU, and by g++ over engine/cuda_on_cpu.h in tests, with -DTHREADS=n (of a block, whole warps)
// -DLIMBS=n (longest transform: a power of two) -DCLASSICAL=n (products of up to n limbs are classical) -DRADIX=3 or 4
// (levels of a transform that stay in registers). Numbers are 32-bit limbs, least first; B stands for 2^32.

typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;
struct alignas(16) Z { double re, im; };
struct alignas(16) Four { u32 x, y, z, w; };
struct alignas(16) Pair { i64 re, im; };  // a point of a transform after rounding
#define FULL 0xffffffffu
#ifndef BLOCKS
#define BLOCKS 1  // of a multiprocessor at least: what registers are given by
#endif
#define NEAR 128  // limbs of a product whose columns stay in shared memory
#define SPILL 16  // limbs by which a product may be longer than its transform

#ifdef ASSAY_ON_CPU
static Z z[LIMBS + LIMBS / 8 + CLASSICAL / 2 + 64];
#else
extern __shared__ Z z[];
#endif
#define AT(i) ((i) + ((i) >> 3))  // one point in nine is left free: strides of powers of two then hit different banks

struct Scratch {  // of a block, in the device's memory
    const Z* roots;   // of the transforms: node n of the tree of moduli has its root at n
    Z* saved;         // the transform of the first factor
    u32* columns;     // sums of a classical product, three words each
    u32 room;         // words of one plane of `columns`
    u64 products, points, macs;  // counted: products, limbs of their transforms, products of two limbs
};

// ------------------------------------------------------------------------------------------------- carries

// What a stretch of limbs makes of a carry of -1, 0, 1 or 2 that comes in: two bits each.
__device__ __forceinline__ u32 after(u32 first, u32 then)
{
    u32 both = 0;
#pragma unroll
    for (int state = 0; state < 8; state += 2) both |= (then >> (2 * (first >> state & 3)) & 3) << state;
    return both;
}

// out[k] = value(k) + carries, for k < length; values lie between -B and 3 B. One scan over what each thread's limbs
// make of a carry; what leaves the last limb is dropped. MINUS gives minus that: -x is the complement of x - 1.
template <bool MINUS = false, class Value> __device__ __forceinline__ void settle(Value value, u32* out, int length)
{
    __shared__ u32 totals[32];
    const int each = (length + THREADS - 1) / THREADS, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int begin = min(length, (int)threadIdx.x * each), end = min(length, begin + each);
    i64 c0 = -1, c1 = 0, c2 = 1, c3 = 2;
#pragma unroll 1
    for (int k = begin; k < end; k++) {
        const i64 v = value(k);
        c0 = (v + c0) >> 32, c1 = (v + c1) >> 32, c2 = (v + c2) >> 32, c3 = (v + c3) >> 32;
    }
    u32 map = (u32)(c0 + 1) | (u32)(c1 + 1) << 2 | (u32)(c2 + 1) << 4 | (u32)(c3 + 1) << 6;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const u32 before = __shfl_up_sync(FULL, map, by);
        if (lane >= by) map = after(before, map);
    }
    if (lane == 31) totals[warp] = map;
    const u32 before = __shfl_up_sync(FULL, map, 1);
    __syncthreads();
    u32 state = MINUS ? 0 : 1;  // a carry of -1, or none
    for (int w = 0; w < warp; w++) state = totals[w] >> (2 * state) & 3;
    if (lane) state = before >> (2 * state) & 3;
    i64 carry = (i64)state - 1;
#pragma unroll 1
    for (int k = begin; k < end; k++) {
        const i64 v = value(k) + carry;
        out[k] = MINUS ? ~(u32)v : (u32)v;
        carry = v >> 32;
    }
    __syncthreads();
}

__device__ __forceinline__ i64 low(i64 s) { return s & 0xffffffffll; }

// How many limbs of a number are in use.
__device__ int used(const u32* a, int length)
{
    __shared__ int most;
    __syncthreads();
    if (threadIdx.x == 0) most = 0;
    __syncthreads();
    for (int k = threadIdx.x; k < length; k += THREADS)
        if (a[k]) atomicMax(&most, k + 1);
    __syncthreads();
    return most;
}

// --------------------------------------------------------------------------------- transforms, exact by their bound

// Products modulo B^N + 1: digits of 16 bits, the upper half as imaginary parts of the lower, are a polynomial modulo
// X^N - i; each level splits X^(2 d) - c^2 into X^d - c and X^d + c. Digits lie in [-2^15, 2^15], so that for N <= 8192
// rounding errors stay below a third (Brent, Percival and Zimmermann 2007): every sum is rounded to the right integer.

__device__ __forceinline__ Z times(Z a, Z b) { return Z{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }

template <int R> __device__ __forceinline__ void down(Z* x, const Z* roots, int node)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int half = 1 << (R - 1 - r);
#pragma unroll
        for (int q = 0; q < 1 << r; q++) {
            const Z root = roots[(node << r) + (q & ~1)];  // an odd child's root is i times its sibling's
#pragma unroll
            for (int i = 0; i < half; i++) {
                Z& a = x[2 * q * half + i];
                Z& b = x[2 * q * half + half + i];
                Z t = times(b, root);
                if (q & 1) t = Z{-t.im, t.re};
                b = Z{a.re - t.re, a.im - t.im};
                a = Z{a.re + t.re, a.im + t.im};
            }
        }
    }
}

template <int R> __device__ __forceinline__ void up(Z* x, const Z* roots, int node)
{
#pragma unroll
    for (int r = R - 1; r >= 0; r--) {
        const int half = 1 << (R - 1 - r);
#pragma unroll
        for (int q = 0; q < 1 << r; q++) {
            Z root = roots[(node << r) + (q & ~1)];
            root.im = -root.im;
#pragma unroll
            for (int i = 0; i < half; i++) {
                Z& a = x[2 * q * half + i];
                Z& b = x[2 * q * half + half + i];
                Z t = times(Z{a.re - b.re, a.im - b.im}, root);
                a = Z{a.re + b.re, a.im + b.im};
                b = q & 1 ? Z{t.im, -t.re} : t;
            }
        }
    }
}

// R levels from level `at` on, of 2^bits points: FORWARD down, then BACK up again; get and put read and write points,
// between them `turn` may change them (it is told the point's place among all that a thread passes over).
template <int R, bool FORWARD, bool BACK, class Get, class Turn, class Put>
__device__ __forceinline__ void levels(int bits, int at, const Z* roots, Get get, Turn turn, Put put)
{
    const int apart = bits - at - R, groups = 1 << (bits - R);
#pragma unroll 1
    for (int g = threadIdx.x; g < groups; g += THREADS) {
        const int b = g >> apart, base = (b << (apart + R)) | (g & ((1 << apart) - 1));
        Z x[1 << R];
#pragma unroll
        for (int j = 0; j < 1 << R; j++) x[j] = get(base + (j << apart));
        if (FORWARD) down<R>(x, roots, (1 << at) + b);
#pragma unroll
        for (int j = 0; j < 1 << R; j++) turn(x[j], j * groups + g);
        if (BACK) up<R>(x, roots, (1 << at) + b);
#pragma unroll
        for (int j = 0; j < 1 << R; j++) put(base + (j << apart), x[j]);
    }
    __syncthreads();
}

template <bool FORWARD, bool BACK, class Get, class Turn, class Put>
__device__ __forceinline__ void some_levels(int count, int bits, int at, const Z* roots, Get get, Turn turn, Put put)
{
    if (count == 2) levels<2, FORWARD, BACK>(bits, at, roots, get, turn, put);
#if RADIX == 4
    else if (count == 4) levels<4, FORWARD, BACK>(bits, at, roots, get, turn, put);
#endif
    else levels<3, FORWARD, BACK>(bits, at, roots, get, turn, put);
}

// How many levels the i-th of so many passes takes: as even as can be, the longer ones first.
__device__ __forceinline__ int share(int bits, int passes, int i) { return bits / passes + (i < bits % passes); }

// Digit i of a number, in [-2^15, 2^15]: what is over 2^15 is carried to the next, which takes it as it comes.
__device__ __forceinline__ int digit(const u32* a, int length, bool is_signed, int i)
{
    if (i > 2 * length || (is_signed && i == 2 * length)) return 0;
    int d = 0;
    if (i < 2 * length) d = (int)(short)(a[i >> 1] >> (16 * (i & 1)));
    if (i) d += a[(i - 1) >> 1] >> (16 * ((i - 1) & 1) + 15) & 1;
    return d;
}

// The rounded sums of a * b modulo B^N + 1 (N = 2^bits) into shared memory.
__device__ void transformed(Scratch& own, int bits, const u32* a, int na, const u32* b, int nb, bool b_signed)
{
    const int points = 1 << bits, passes = (bits + RADIX - 1) / RADIX;
    const Z* roots = own.roots;
    Z* saved = own.saved;
    auto shared = [&](int i) { return z[AT(i)]; };
    auto keep = [&](int i, Z x) { z[AT(i)] = x; };
    auto as_is = [](Z&, int) {};
#pragma unroll 1
    for (int factor = 0; factor < 2; factor++) {
        const u32* from = factor ? b : a;
        const int length = factor ? nb : na;
        const bool is_signed = factor && b_signed;
        auto digits = [&](int i) {  // what is longer than N limbs comes back with its sign turned
            int re = digit(from, length, is_signed, i);
            if (i + 2 * points <= 2 * length) re -= digit(from, length, is_signed, i + 2 * points);
            return Z{(double)re, (double)digit(from, length, is_signed, i + points)};
        };
        int at = share(bits, passes, 0);
        some_levels<true, false>(at, bits, 0, roots, digits, as_is, keep);
        for (int i = 1; i < passes - 1; i++) {
            some_levels<true, false>(share(bits, passes, i), bits, at, roots, shared, as_is, keep);
            at += share(bits, passes, i);
        }
        const int last = share(bits, passes, passes - 1);
        if (factor == 0) {
            auto save = [&](Z& x, int place) { saved[place] = x; };
            some_levels<true, false>(last, bits, at, roots, shared, save, [](int, Z) {});
        } else {
            auto multiply = [&](Z& x, int place) { x = times(x, saved[place]); };
            some_levels<true, true>(last, bits, at, roots, shared, multiply, keep);
        }
    }
    int at = bits - share(bits, passes, passes - 1);
    for (int i = passes - 2; i > 0; i--) {
        at -= share(bits, passes, i);
        some_levels<false, true>(share(bits, passes, i), bits, at, roots, shared, as_is, keep);
    }
    const double scale = 1.0 / points;
    auto round = [&](int i, Z x) { ((Pair*)z)[AT(i)] = Pair{(i64)rint(x.re * scale), (i64)rint(x.im * scale)}; };
    some_levels<false, true>(at, bits, 0, roots, shared, as_is, round);
}

// ------------------------------------------------------------------------------------------------- products

struct Sum { u32 low, middle, high; };

__device__ __forceinline__ void add_product(Sum& sum, u32 a, u32 b)
{
#ifdef ASSAY_ON_CPU
    const u64 product = (u64)a * b, before = (u64)sum.middle << 32 | sum.low, now = before + product;
    sum.low = (u32)now, sum.middle = (u32)(now >> 32), sum.high += now < product;
#else
    asm("mad.lo.cc.u32 %0, %3, %4, %0;\n\tmadc.hi.cc.u32 %1, %3, %4, %1;\n\taddc.u32 %2, %2, 0;"
        : "+r"(sum.low), "+r"(sum.middle), "+r"(sum.high) : "r"(a), "r"(b));
#endif
}

// What a product is taken from: nothing (the product itself counts), a power of B, or a number.
struct Minuend { int power; const u32* number; int length; };

__device__ __forceinline__ i64 limb(const Minuend& from, int k)
{
    return from.number ? (k < from.length ? from.number[k] : 0) : k == from.power;
}

// Four neighbouring columns of a * b at a time, from shared memory: two loads of four limbs for sixteen products.
__device__ void classical(Scratch& own, u32* out, int length, const u32* a, int na, const u32* b, int nb, bool b_signed,
                          const Minuend& from)
{
    __shared__ u32 near_by[3 * NEAR];
    u32* columns = length <= NEAR ? near_by : own.columns;
    const u32 room = length <= NEAR ? NEAR : own.room;
    u32* left = (u32*)z;
    const bool negative = b_signed && b[nb - 1] >> 31;
    na = min(na, length), nb = min(nb, length);
    const int a_room = (na + 7) & ~3, b_room = (nb + 15) & ~3, tiles = (length + 3) / 4;
    u32* right = left + a_room + 4;
    for (int k = threadIdx.x; k < a_room; k += THREADS) left[k] = k < na ? a[k] : 0;
    for (int k = (int)threadIdx.x - 4; k < b_room; k += THREADS) right[k] = k >= 0 && k < nb ? b[k] : 0;
    __syncthreads();
    u64 macs = 0;
#pragma unroll 1
    for (int t = threadIdx.x; t < (tiles + 1) / 2; t += THREADS)
#pragma unroll 1
        for (int turn = 0; turn < 2; turn++) {  // a long column and a short one: all threads have the same work
            const int tile = turn ? tiles - 1 - t : t, c = 4 * tile;
            if (turn && tile == t) break;
            Sum sum[4] = {};
            const int first = max(0, c - nb + 1) & ~3, end = min(c + 4, na);
            if (first < end) {
                Four high = *(Four*)(right + c - first);
#pragma unroll 2
                for (int i = first; i < end; i += 4) {
                    const Four x = *(Four*)(left + i), under = *(Four*)(right + c - i - 4);
                    const u32 xs[4] = {x.x, x.y, x.z, x.w};
                    const u32 ys[8] = {under.x, under.y, under.z, under.w, high.x, high.y, high.z, high.w};
#pragma unroll
                    for (int p = 0; p < 4; p++)
#pragma unroll
                        for (int m = 0; m < 4; m++) add_product(sum[m], xs[p], ys[4 + m - p]);
                    high = under;
                }
                macs += 4 * (end - first);
            }
#pragma unroll
            for (int m = 0; m < 4; m++)
                if (c + m < length) {
                    columns[c + m] = sum[m].low;
                    columns[room + c + m] = sum[m].middle;
                    columns[2 * room + c + m] = sum[m].high;
                }
        }
    own.macs += macs;  // of this thread: added up when the pair is done
    __syncthreads();
    auto column = [&](int k) {
        i64 v = columns[k];
        if (k > 0) v += columns[room + k - 1];
        if (k > 1) v += columns[2 * room + k - 2];
        if (negative && k >= nb && k - nb < na) v -= a[k - nb];
        return v;
    };
    if (!from.number && from.power < 0) {
        settle(column, out, length);
    } else {
        settle<true>([&](int k) { return column(k) - limb(from, k); }, out, length);
    }
}

// The columns of the low limbs of a * b, a thread each, and what they are taken from: all that `miss` needs of them.
struct Lows { Sum sums[SPILL]; u32 from[SPILL], a[SPILL], b[SPILL]; i64 above[SPILL]; };

__device__ void lowest(Lows& lows, int count, const u32* a, int na, const u32* b, int nb, bool b_signed, const Minuend& from)
{
    const int c = threadIdx.x;
    if (c < count) {
        lows.a[c] = c < na ? a[c] : 0;
        lows.b[c] = c < nb ? b[c] : b_signed && b[nb - 1] >> 31 ? FULL : 0;
        lows.from[c] = (u32)limb(from, c);
    }
    __syncthreads();
    if (c < count) {
        Sum sum = {0, 0, 0};
#pragma unroll 4
        for (int i = 0; i <= c; i++) add_product(sum, lows.a[i], lows.b[c - i]);
        lows.sums[c] = sum;
    }
}

// out = a * b, or `from` - a * b, as a signed number of `length` limbs that it is known to fit into with a limb to spare;
// b may be signed. Modulo B^N + 1 by transforms and modulo B^e directly, so that N + e limbs are known: a result that is
// a little longer than a power of two, or of which the upper limbs cancel, takes the shorter transform.
__device__ __noinline__ void residue(Scratch& own, u32* out, int length, const u32* a, int na, const u32* b, int nb,
                                     bool b_signed, Minuend from)
{
    __shared__ Lows lows;
    __shared__ u32 known[SPILL], add[SPILL];
    __shared__ i64 over;
    own.products++;
    __syncthreads();
    if (length <= CLASSICAL) {
        classical(own, out, length, a, na, b, nb, b_signed, from);
        return;
    }
    int bits = 6;
    while ((1 << bits) + SPILL < max(length, max(na, nb))) bits++;
    const int n = 1 << bits, e = max(2, length - n);
    own.points += n;
    lowest(lows, e, a, na, b, nb, b_signed, from);
    transformed(own, bits, a, na, b, nb, b_signed);
    const bool minus = from.number || from.power >= 0;
    auto sum = [&](int k) {
        const Pair* points = (const Pair*)z;
        const int i = 2 * k < n ? 2 * k : 2 * k - n;
        const Pair &first = points[AT(i)], &second = points[AT(i + 1)];
        i64 s = 2 * k < n ? first.re + second.re * 65536 : first.im + second.im * 65536;
        if (!minus) return s;
        s = -s;
        if (from.number)
#pragma unroll 1
            for (int j = k, sign = 1; j < from.length; j += n, sign = -sign) s += sign * (i64)from.number[j];
        else if ((from.power & (n - 1)) == k)
            s += from.power >> bits & 1 ? -1 : 1;
        return s;
    };
    if ((int)threadIdx.x < e) lows.above[threadIdx.x] = sum(threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) {  // by what multiple of B^N + 1 the sums miss the number whose low limbs are known
        u64 up = 0;
        u32 pending = 0;
        i64 borrow = 0, carry = 0, less = 0;
#pragma unroll 2
        for (int k = 0; k < e; k++) {
            const Sum column = lows.sums[k];
            const u64 total = up + column.low;
            up = (total >> 32) + column.middle + pending;
            pending = column.high;
            const i64 right = (minus ? (i64)lows.from[k] - (i64)(u32)total : (i64)(u32)total) + borrow;
            borrow = right >> 32;
            const i64 v = lows.above[k] + carry;
            carry = v >> 32;
            const i64 d = low(right) - low(v) + less;
            less = d >> 32;
            known[k] = (u32)right, add[k] = (u32)d;
        }
        over = carry - less - (add[e - 1] >> 31);
    }
    __syncthreads();
    auto value = [&](int k) -> i64 {
        if (k < e) return known[k];
        if (k == e) return low(sum(k)) + over;
        if (k < n) return low(sum(k)) + (sum(k - 1) >> 32);
        return (i64)add[k - n] + (k == n ? sum(n - 1) >> 32 : 0);
    };
    settle(value, out, length);
}

// ------------------------------------------------------------------------------------------------- division

// Limbs that hold an inverse of so many right bits: the last limb and its rounding lie below them.
__device__ __forceinline__ int limbs_for(int right) { return max(3, (right + 4 + 31) / 32 + 1); }

// About B^(k + p) / v for v of k + 1 limbs, off by less than 2^-right of itself; `right` doubles, less one, a step.
// Returns p; the inverse has p + 1 limbs and comes to lie in `one` or in `other`: *found says where.
__device__ int inverse(Scratch& own, const u32* v, int k, int wanted, u32* one, u32* other, u32* t, u32* x, u32** found)
{
    int right = wanted, steps = 0;
    for (; right > 62; steps++) right = (right + 2) >> 1;
    int p = limbs_for(right);
    if (threadIdx.x == 0) {  // (2^128 - 1) / the upper 64 bits of v, bit by bit
        const int shift = __clz(v[k]);
        const u64 top = (u64)v[k] << 32 | (k > 0 ? v[k - 1] : 0);
        const u64 d = shift ? top << shift | (k > 1 ? v[k - 2] : 0) >> (32 - shift) : top;
        u64 rest = ~d, q = 0;
#pragma unroll 1
        for (int i = 0; i < 64; i++) {
            const bool beyond = rest >> 63;
            rest = rest << 1 | 1;
            q <<= 1;
            if (beyond || rest >= d) rest -= d, q |= 1;
        }
        for (int i = 0; i < p - 3; i++) one[i] = 0;
        one[p - 3] = (u32)q << shift;
        one[p - 2] = (u32)(shift ? (q << shift) >> 32 : q >> 32);
        one[p - 1] = (u32)(1u << shift | (shift ? q >> (64 - shift) : 0));
        one[p] = 0;
    }
    __syncthreads();
    for (int step = steps - 1; step >= 0; step--) {
        int next = wanted;
        for (int i = 0; i < step; i++) next = (next + 2) >> 1;
        const int p2 = limbs_for(next), k2 = min(k, p2), nt = k2 + p - right / 32 + 1;
        const int cut = max(0, k2 + p - p2), shift = k2 + 2 * p - p2 - cut, rest = nt - cut, nx = p + rest + 1;
        residue(own, t, nt, v + k - k2, k2 + 1, one, p + 1, false, Minuend{k2 + p, nullptr, 0});
        residue(own, x, nx, one, p + 1, t + cut, rest, true, Minuend{-1, nullptr, 0});
        const i64 beyond = x[nx - 1] >> 31 ? FULL : 0;
        const u32* w = one;
        auto value = [&](int j) -> i64 {
            const int at = j - (p2 - p);
            return (at >= 0 && at <= p ? (i64)w[at] : 0) + (j + shift < nx ? (i64)x[j + shift] : beyond);
        };
        settle(value, other, p2 + 1);
        u32* swap = one;
        one = other, other = swap;
        p = p2, right = next;
    }
    *found = one;
    return p;
}

// Bring the remainder d - q v into [0, v); returns by how much the quotient was too small (negative: too large).
__device__ int correct(u32** r, u32** other, const u32* v, int k)
{
    int missing = 0;
    while ((*r)[k + 2] >> 31 && missing > -8) {
        const u32* from = *r;
        settle([&](int i) { return (i64)from[i] + (i <= k ? v[i] : 0); }, *other, k + 3);
        u32* swap = *r;
        *r = *other, *other = swap;
        missing--;
    }
    for (; missing < 8; missing++) {
        const u32* from = *r;
        settle([&](int i) { return (i64)from[i] - (i <= k ? v[i] : 0); }, *other, k + 3);
        if ((*other)[k + 2] >> 31) break;
        u32* swap = *r;
        *r = *other, *other = swap;
    }
    return missing;
}

// q = u / v, r = u % v, by blocks of at most `most` limbs of the quotient, each with the remainder of the one before.
__device__ void divide_pair(Scratch& own, const u32* u, int nu, const u32* v, int nv, u32* q, u32* r, u32* work, u32 room,
                            int most, int* told)
{
    const int h = used(u, nu), k = used(v, nv) - 1, digits = h - k;
    for (int i = threadIdx.x; i < nu; i += THREADS)
        if (k < 0 || h <= k || i >= digits) q[i] = 0;
    if (k < 0 || h <= k) {
        for (int i = threadIdx.x; i < nv; i += THREADS) r[i] = k >= 0 && i < h ? u[i] : 0;
        return;
    }
    const int cap = min(most, max(k + 2, 512)), blocks = (digits + cap - 1) / cap, m = (digits + blocks - 1) / blocks;
    u32 *x = work, *w, *rest = work + 3 * room, *other = work + 4 * room, *whole = work + 5 * room;
    const int p = inverse(own, v, k, 32 * m + 4, work + room, work + 2 * room, rest, x, &w);
    int least = 0, largest = 0;
    for (int block = blocks - 1; block >= 0; block--) {
        const u32* dividend = u + m * block;
        int hd = h - m * block;
        if (block < blocks - 1) {
            hd = m + k + 1;
            for (int i = threadIdx.x; i < hd; i += THREADS) whole[i] = i < m ? u[m * block + i] : rest[i - m];
            __syncthreads();
            dividend = whole;
        }
        const int cut = max(0, k - 1), shift = k + p - cut, nd = hd - cut;
        residue(own, x, nd + p + 2, dividend + cut, nd, w, p + 1, false, Minuend{-1, nullptr, 0});
        const u32* guess = x + shift;
        const int here = min(m, hd - k);
        residue(own, rest, k + 3, guess, here + 1, v, k + 1, false, Minuend{-1, dividend, hd});
        const int missing = correct(&rest, &other, v, k);
        least = min(least, missing), largest = max(largest, missing);
        settle([&](int i) { return (i64)guess[i] + (i ? 0 : missing); }, q + m * block, here);
    }
    for (int i = threadIdx.x; i < nv; i += THREADS) r[i] = i <= k ? rest[i] : 0;
    if (threadIdx.x == 0) told[0] = least, told[1] = largest;
}

#define PLANES 9  // of `room` words in `work`: six numbers and the columns of a classical product

__device__ Scratch scratch(const Z* roots, Z* saved, u32* work, int room)
{
    return Scratch{roots, saved + (u64)blockIdx.x * LIMBS, work + ((u64)blockIdx.x * PLANES + 6) * room, (u32)room, 0, 0, 0};
}

__device__ void tell(Scratch& own, u64* counts)
{
    if (threadIdx.x == 0) counts[0] = own.products, counts[1] = own.points;
    if (own.macs) atomicAdd(&counts[2], own.macs);
    own.products = own.points = own.macs = 0;
    __syncthreads();
}

// Pairs of nu and nv limbs each, one after the other; q has nu limbs, r has nv. fixes: the least and the largest
// correction of a pair's quotient. counts (zeroed before): products, limbs of transforms, products of limbs of a pair.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) divide(const u32* us, int nu, const u32* vs, int nv, u32* qs, u32* rs, int pairs, const Z* roots,
    Z* saved, u32* work, int room, int most, int* fixes, u64* counts)
{
    Scratch own = scratch(roots, saved, work, room);
    for (int i = blockIdx.x; i < pairs; i += gridDim.x) {
        divide_pair(own, us + (u64)i * nu, nu, vs + (u64)i * nv, nv, qs + (u64)i * nu, rs + (u64)i * nv,
                    work + (u64)blockIdx.x * PLANES * room, room, most, fixes + 2 * i);
        tell(own, counts + 3 * (u64)i);
    }
}

// Products of pairs of na and nb limbs: outs has na + nb limbs each.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) multiply(const u32* as, int na, const u32* bs, int nb, u32* outs, int pairs, const Z* roots,
    Z* saved, u32* work, int room, u64* counts)
{
    Scratch own = scratch(roots, saved, work, room);
    u32* x = work + (u64)blockIdx.x * PLANES * room;
    for (int i = blockIdx.x; i < pairs; i += gridDim.x) {
        residue(own, x, na + nb + 1, as + (u64)i * na, na, bs + (u64)i * nb, nb, false, Minuend{-1, nullptr, 0});
        for (int k = threadIdx.x; k < na + nb; k += THREADS) outs[(u64)i * (na + nb) + k] = x[k];
        tell(own, counts + 3 * (u64)i);
    }
}
