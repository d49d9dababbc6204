// The best score that any query of a group can reach in each block, from its corners: a warp takes 16 blocks at a time.
//
// Compiled by NVRTC with -DHEADS -DGROUP (queries a head) -DWIDTH -DBITS (4 or 16) -DBRAIN (1: queries and corners of 16
// bits are bfloat16, 0: half precision) -DWARPS (a block's) -DRUN (tiles of 16 that a warp takes), and by g++ over
// engine/cuda_on_cpu.h in tests. At one cache nothing is long but the wait for memory, so nothing waits twice: where a
// head's blocks lie comes with the call, and every load of a warp is on its way before the first is used. Tensor cores
// sum over channels in any order, as long as queries and blocks have the same one; so a thread multiplies the bytes as it
// loads them, and nothing changes places. Codes are multiplied by queries times scales, and queries times zeros, alike
// for all blocks of a group of tokens, are added.

#define FULL 0xffffffffu
#define EIGHTS ((GROUP + 7) / 8)  // of queries
#define PAIRS (WIDTH / 8)  // of channels: a thread has a quarter of a row
#define THREADS (32 * WARPS)
#define RAW (BITS == 4 ? WIDTH / 16 : WIDTH / 4)  // words of a row that a thread loads

// Where the heads' blocks begin, their warps' runs, and by how many bits a block's number goes down to its group's.
struct Where {
    int first[HEADS + 1], runs[HEADS + 1], bits[HEADS];
};

#ifndef ASSAY_ON_CPU
#if BITS == 16 && BRAIN
#define KIND "bf16"
#else
#define KIND "f16"
#endif

__device__ __forceinline__ unsigned multiplied(unsigned a, unsigned b)
{
    unsigned out;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

__device__ __forceinline__ unsigned multiplied_added(unsigned a, unsigned b, unsigned c)
{
    unsigned out;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

__device__ __forceinline__ unsigned halves(float low, float high)
{
    unsigned out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

// d += a b, of 16 blocks and 8 queries over 16 channels.
__device__ __forceinline__ void product(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                        unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#else
#define product(...) cpu_product<BITS == 16 && BRAIN>(__VA_ARGS__)
#endif

// Of two numbers of 16 bits what is below zero, or above.
__device__ __forceinline__ unsigned below(unsigned x) { return x & ((x >> 15 & 0x00010001u) * 0xffffu); }
__device__ __forceinline__ unsigned above(unsigned x) { return x & ~((x >> 15 & 0x00010001u) * 0xffffu); }

__device__ __forceinline__ void load(unsigned* to, const void* from)
{
    const uint4 four = __ldg((const uint4*)from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// A thread's pairs of channels of a row of 16-bit numbers, in the order in which it has a block's.
__device__ __forceinline__ void load_row(unsigned (&to)[PAIRS], const unsigned short* row)
{
    const int quarter = threadIdx.x & 3;
#pragma unroll
    for (int p = 0; p < PAIRS; p += 4) {
        const int c = BITS == 4 ? p / 8 * 64 + quarter * 16 + p % 8 * 2 : p / 4 * 32 + quarter * 8;
        load(to + p, row + c);
    }
}

// A thread's part of a tile: of two blocks, eight apart.
__device__ __forceinline__ void load_tile(unsigned (&to)[2][RAW], const unsigned char* blocks, int start, int end)
{
    const int lane = threadIdx.x & 31, quarter = lane & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned char* row = blocks + (long long)min(start + lane / 4 + 8 * r, end - 1) * (BITS * WIDTH / 4);
#pragma unroll
        for (int w = 0; w < RAW; w += 4) load(to[r] + w, row + w * 16 + quarter * 16);
    }
}

#if BITS == 4
// What every block of a group of tokens is multiplied by, two channels a word; and what is added.
struct Weights {
    unsigned low[EIGHTS][PAIRS], high[EIGHTS][PAIRS];
    float base[EIGHTS][4];
};

__device__ __forceinline__ void prepare(Weights& w, const unsigned (&q)[EIGHTS][PAIRS], const unsigned (&steps)[4][PAIRS])
{
#pragma unroll
    for (int n = 0; n < EIGHTS; n++) {
        float parts[4][4] = {};  // four sums at a time: each waits for itself
#pragma unroll
        for (int p = 0; p < PAIRS; p += 2) {
            const unsigned d0 = below(q[n][p]), d1 = below(q[n][p + 1]), u0 = above(q[n][p]), u1 = above(q[n][p + 1]);
            product(parts[p >> 1 & 1], steps[1][p], steps[1][p], steps[1][p + 1], steps[1][p + 1], d0, d1);
            product(parts[2 | (p >> 1 & 1)], steps[3][p], steps[3][p], steps[3][p + 1], steps[3][p + 1], u0, u1);
            // Four bytes are channels 0 and 2, then 1 and 3: see number.
            const unsigned l0 = multiplied(d0, steps[0][p]), l1 = multiplied(d1, steps[0][p + 1]);
            const unsigned h0 = multiplied(u0, steps[2][p]), h1 = multiplied(u1, steps[2][p + 1]);
            w.low[n][p] = __byte_perm(l0, l1, 0x5410), w.low[n][p + 1] = __byte_perm(l0, l1, 0x7632);
            w.high[n][p] = __byte_perm(h0, h1, 0x5410), w.high[n][p + 1] = __byte_perm(h0, h1, 0x7632);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) w.base[n][i] = (parts[0][i] + parts[1][i]) + (parts[2][i] + parts[3][i]);
    }
}

// The codes of two bytes, 16 bits apart, in half precision: they are the last bits of 1024 + code, and of 1024 + 16 code.
__device__ __forceinline__ unsigned number(unsigned bytes)
{
    return multiplied_added((bytes & 0x000f000fu) | 0x64006400u, 0x3c003c00u, 0xe400e400u);
}

__device__ __forceinline__ unsigned upper_number(unsigned bytes)
{
    return multiplied_added((bytes & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, 0xd400d400u);
}

__device__ __forceinline__ void score(float (&sums)[4][4], const unsigned (&raw)[2][RAW], const Weights& w, int n)
{
#pragma unroll
    for (int i = 0; i < RAW; i++) {
        const unsigned a = raw[0][i], b = raw[1][i];
        product(sums[i & 1], number(a), number(b), number(a >> 8), number(b >> 8), w.low[n][2 * i], w.low[n][2 * i + 1]);
        product(sums[2 | (i & 1)], upper_number(a), upper_number(b), upper_number(a >> 8), upper_number(b >> 8),
                w.high[n][2 * i], w.high[n][2 * i + 1]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sums[0][i] += w.base[n][i];
}
#else
struct Weights {
    unsigned low[EIGHTS][PAIRS], high[EIGHTS][PAIRS];
};

__device__ __forceinline__ void prepare(Weights& w, const unsigned (&q)[EIGHTS][PAIRS], const unsigned (&)[4][PAIRS])
{
#pragma unroll
    for (int n = 0; n < EIGHTS; n++)
#pragma unroll
        for (int p = 0; p < PAIRS; p++) w.low[n][p] = below(q[n][p]), w.high[n][p] = above(q[n][p]);
}

__device__ __forceinline__ void score(float (&sums)[4][4], const unsigned (&raw)[2][RAW], const Weights& w, int n)
{
#pragma unroll
    for (int p = 0; p < PAIRS; p += 2) {  // lower corners come first in a row, upper ones half a row behind
        const int i = p >> 1 & 1, u = PAIRS + p;
        product(sums[i], raw[0][p], raw[1][p], raw[0][p + 1], raw[1][p + 1], w.low[n][p], w.low[n][p + 1]);
        product(sums[2 | i], raw[0][u], raw[1][u], raw[0][u + 1], raw[1][u + 1], w.high[n][p], w.high[n][p + 1]);
    }
}
#endif

// The best of a group's queries for the two blocks of a thread's row: four threads have them.
__device__ __forceinline__ void best(float (&most)[2], const unsigned (&raw)[2][RAW], const Weights& w)
{
    const int quarter = threadIdx.x & 3;
    most[0] = most[1] = __uint_as_float(0xff800000u);
#pragma unroll
    for (int n = 0; n < EIGHTS; n++) {
        float sums[4][4] = {};
        score(sums, raw, w, n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float sum = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
            if (8 * n + 2 * quarter + (i & 1) < GROUP) most[i >> 1] = fmaxf(most[i >> 1], sum);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(FULL, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(FULL, most[r], 2));
    }
}

// The queries of a head that a thread multiplies.
__device__ __forceinline__ void load_queries(unsigned (&q)[EIGHTS][PAIRS], const unsigned short* queries)
{
    const int row = (threadIdx.x & 31) / 4;
#pragma unroll
    for (int n = 0; n < EIGHTS; n++) {
        if (8 * n + row < GROUP)
            load_row(q[n], queries + (8 * n + row) * WIDTH);
        else
#pragma unroll
            for (int p = 0; p < PAIRS; p++) q[n][p] = 0;
    }
}

// Scales and zeros of the lower corner, then of the upper.
__device__ __forceinline__ void load_steps(unsigned (&steps)[4][PAIRS], const unsigned short* fold)
{
#pragma unroll
    for (int i = 0; i < 4; i++) load_row(steps[i], fold + i * WIDTH);
}

extern "C" __global__ void __launch_bounds__(THREADS) estimate(const unsigned short* queries,
    const unsigned char* summaries, const unsigned short* fold, float* scored, Where where, int blocks, int groups,
    int caches)
{
    const int lane = threadIdx.x & 31, index = blockIdx.x * WARPS + threadIdx.x / 32;
    const int cache = index / where.runs[HEADS], run = index % where.runs[HEADS];
    if (cache >= caches) return;
    int head = 0, first = 0, last = where.first[1], before = 0, bits = where.bits[0];
#pragma unroll
    for (int h = 1; h < HEADS; h++)
        if (run >= where.runs[h])
            head = h, first = where.first[h], last = where.first[h + 1], before = where.runs[h], bits = where.bits[h];
    const int begin = first + (run - before) * 16 * RUN, end = min(begin + 16 * RUN, last);
    const long long pair = (long long)cache * HEADS + head;
    summaries += (long long)cache * blocks * (BITS * WIDTH / 4);

    fold += pair * groups * 4 * WIDTH;

    unsigned raw[2][RAW], next[2][RAW], q[EIGHTS][PAIRS], steps[4][PAIRS];
    Weights weights;
    int group = (begin - first) >> bits;
    load_tile(raw, summaries, begin, last);
    load_queries(q, queries + pair * GROUP * WIDTH);
    if (BITS == 4) load_steps(steps, fold + group * 4 * WIDTH);
#if BITS == 4 && BRAIN
    for (auto& row : q)
        for (unsigned& two : row) two = halves(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
#endif
    prepare(weights, q, steps);
#pragma unroll 1
    for (int start = begin; start < end; start += 16) {
        if (RUN > 1) load_tile(next, summaries, min(start + 16, last - 1), last);
        if (BITS == 4 && (start - first) >> bits != group) {
            group = (start - first) >> bits;
            load_steps(steps, fold + group * 4 * WIDTH);
            prepare(weights, q, steps);
        }
        float most[2];
        best(most, raw, weights);
        const int at = start + lane / 4;
        float* out = scored + (long long)cache * blocks;
        if ((lane & 3) == 0 && at < end) out[at] = most[0];
        if ((lane & 3) == 0 && at + 8 < end) out[at + 8] = most[1];
        if (RUN > 1)
#pragma unroll
            for (int w = 0; w < RAW; w++) raw[0][w] = next[0][w], raw[1][w] = next[1][w];
    }
}
