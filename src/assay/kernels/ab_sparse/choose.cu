// The blocks of each head with the highest scores: a block of threads a head and cache, scores in registers.
//
// Compiled by NVRTC with -DTHREADS=n -DEACH=n (scores a thread at most) on a GPU, and by g++ over engine/cuda_on_cpu.h
// in tests. Scores become whole numbers in their order. A histogram of what may still be the last to be taken, 11 bits
// at a time, narrows that down; as soon as a warp can hold what is left, that is compared one with another. Equal scores
// go by place. Who is taken is marked in words of 32 places, so that few threads write them down in their order.

#define FULL 0xffffffffu
#define BITS 11
#define BINS (1 << BITS)
#define SHARE (BINS / THREADS)  // bins of a thread
#define WORDS (EACH * (THREADS / 32))
#define OWN ((WORDS + THREADS - 1) / THREADS)  // words of a thread

// The sum of what threads before this one have. `sums` must not be in use since the last but one __syncthreads().
__device__ __forceinline__ unsigned before(unsigned mine, unsigned* sums)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    unsigned upto = mine;
    for (int by = 1; by < 32; by <<= 1) {
        const unsigned other = __shfl_up_sync(FULL, upto, by);
        if (lane >= by) upto += other;
    }
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    unsigned whole = lane < THREADS / 32 ? sums[lane] : 0;
    for (int by = 1; by < 32; by <<= 1) {
        const unsigned other = __shfl_up_sync(FULL, whole, by);
        if (lane >= by) whole += other;
    }
    const unsigned below = __shfl_sync(FULL, whole, warp ? warp - 1 : 0);
    return (warp ? below : 0) + upto - mine;
}

// What may still be the last to be taken: of the `within` keys from `from` to `to`, `need` are; above `to` all are.
struct Open {
    unsigned from, to, need, within;
    __device__ __forceinline__ bool holds(unsigned key) const { return key - from <= to - from; }
};

// At most 32 keys are left: every warp compares them one with another.
__device__ __forceinline__ void compare(Open& open, const unsigned (&key)[EACH], unsigned* few, unsigned* count)
{
    const unsigned lane = threadIdx.x & 31;
    bool some = false;
#pragma unroll
    for (int k = 0; k < EACH; k++) some |= open.holds(key[k]);
    if (some)  // few warps have any
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (open.holds(key[k])) few[atomicAdd(count, 1u)] = key[k];
    __syncthreads();
    const unsigned mine = lane < open.within ? few[lane] : 0;
    unsigned above = 0, alike = 0;
    for (unsigned i = 0; i < open.within; i++) {
        const unsigned other = __shfl_sync(FULL, mine, i);
        above += other > mine;
        alike += other == mine;
    }
    const bool last = lane < open.within && above < open.need && above + alike >= open.need;
    const int at = __ffs(__ballot_sync(FULL, last)) - 1;
    open.from = open.to = __shfl_sync(FULL, mine, at);
    open.need -= __shfl_sync(FULL, above, at);
    open.within = __shfl_sync(FULL, alike, at);
}

// A histogram of the keys that are left, `bins` all zero before, and the bin in which the last to be taken lies.
__device__ __forceinline__ void narrow(Open& open, const unsigned (&key)[EACH], unsigned* bins, unsigned* sums,
                                       unsigned* found)
{
    const int bits = 32 - __clz((int)(open.to - open.from)), shift = bits > BITS ? bits - BITS : 0;
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (open.holds(key[k])) atomicAdd(&bins[(key[k] - open.from) >> shift], 1u);
    __syncthreads();
    const int top = BINS - 1 - (int)threadIdx.x * SHARE;  // bins from the highest down
    unsigned mine = 0;
#pragma unroll
    for (int b = 0; b < SHARE; b++) mine += bins[top - b];
    unsigned above = before(mine, sums);
    if (above < open.need && above + mine >= open.need)
        for (int b = 0; b < SHARE; b++) {
            const unsigned inside = bins[top - b];
            if (above + inside >= open.need) {
                found[0] = top - b, found[1] = above, found[2] = inside;
                break;
            }
            above += inside;
        }
    __syncthreads();
    open.from += found[0] << shift;
    open.to = min(open.to, open.from + ((1u << shift) - 1));
    open.need -= found[1];
    open.within = found[2];
}

extern "C" __global__ void __launch_bounds__(THREADS) choose(const float* scored, const int* first, const int* begin,
                                                             int* chosen, int blocks, int picks, int heads)
{
    __shared__ unsigned bins[2][BINS], sums[2][32], surely[WORDS], perhaps[WORDS], few[32], found[3], low, high, count;
    const int head = blockIdx.x % heads, cache = blockIdx.x / heads;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int start = first[head], size = first[head + 1] - start, out = begin[head], want = begin[head + 1] - out;
    const float* scores = scored + (long long)cache * blocks + start;
    if (!want) return;

    unsigned key[EACH], least = FULL, most = 0;
    if (threadIdx.x == 0) low = FULL, high = 0, count = 0;
#pragma unroll
    for (int b = 0; b < SHARE; b++) bins[0][b * THREADS + threadIdx.x] = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int i = k * THREADS + threadIdx.x;
        key[k] = 0;  // no score: below all that have one
        if (i < size) {
            const unsigned bits = __float_as_uint(scores[i]);
            key[k] = max(bits ^ ((unsigned)((int)bits >> 31) | 0x80000000u), 1u);
            least = min(least, key[k]);
            most = max(most, key[k]);
        }
    }
    for (int by = 16; by; by >>= 1) {
        least = min(least, __shfl_xor_sync(FULL, least, by));
        most = max(most, __shfl_xor_sync(FULL, most, by));
    }
    __syncthreads();
    if (lane == 0) {
        atomicMin(&low, least);
        atomicMax(&high, most);
    }
    __syncthreads();

    Open open = {low, high, (unsigned)want, (unsigned)size};
    int turn = 0;
    for (; open.need < open.within && open.from < open.to; turn ^= 1) {
        if (open.within <= 32) {
            compare(open, key, few, &count);
            break;
        }
#pragma unroll
        for (int b = 0; b < SHARE; b++) bins[turn ^ 1][b * THREADS + threadIdx.x] = 0;  // for the next turn
        narrow(open, key, bins[turn], sums[turn], found);
    }

    // In the order of their places: how many are sure, and how many may be, before each 32.
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const unsigned sure = __ballot_sync(FULL, key[k] > open.to), may = __ballot_sync(FULL, open.holds(key[k]));
        if (lane == 0) surely[k * (THREADS / 32) + warp] = sure, perhaps[k * (THREADS / 32) + warp] = may;
    }
    __syncthreads();
    const int own = threadIdx.x * OWN, end = min(own + OWN, WORDS);
    unsigned mine = 0;
    for (int w = own; w < end; w++) mine += __popc(surely[w]) | __popc(perhaps[w]) << 16;
    unsigned upto = before(mine, sums[turn]);
    int* place = chosen + (long long)cache * picks + out;
    for (int w = own; w < end; w++)
        for (unsigned left = surely[w] | perhaps[w]; left; left &= left - 1) {
            const int bit = __ffs(left) - 1;
            const bool sure = surely[w] >> bit & 1;
            const unsigned ties = upto >> 16;
            if (sure || ties < open.need) place[(upto & 0xffff) + min(ties, open.need)] = w * 32 + bit;
            upto += sure ? 1 : 1 << 16;
        }
}
