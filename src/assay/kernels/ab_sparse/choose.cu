// The blocks of each head with the highest scores: a block of threads a head and cache, scores in registers.
//
// Compiled by NVRTC with -DTHREADS=n -DEACH=n (scores a thread at most) on a GPU, and by g++ over engine/cuda_on_cpu.h
// in tests. Scores become whole numbers in their order. A histogram of what may still be the last to be taken, 11 bits
// at a time, narrows that down in two or three passes over registers; equal scores go by place.

#define FULL 0xffffffffu
#define BITS 11
#define BINS (1 << BITS)
#define SHARE (BINS / THREADS)  // bins of a thread

// The sum of what threads before this one have.
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
    __syncthreads();  // sums may be written again
    return (warp ? below : 0) + upto - mine;
}

extern "C" __global__ void __launch_bounds__(THREADS) choose(const float* scored, const int* first, const int* begin,
                                                             int* chosen, int blocks, int picks, int heads)
{
    __shared__ unsigned bins[BINS], sums[32], groups[EACH * (THREADS / 32)], low, high, found[3];
    const int head = blockIdx.x % heads, cache = blockIdx.x / heads;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int start = first[head], size = first[head + 1] - start, out = begin[head], want = begin[head + 1] - out;
    const float* scores = scored + (long long)cache * blocks + start;
    if (!want) return;

    unsigned key[EACH], least = ~0u, most = 0;
    if (threadIdx.x == 0) low = ~0u, high = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int i = k * THREADS + threadIdx.x;
        key[k] = 0;
        if (i < size) {
            const unsigned bits = __float_as_uint(scores[i]);
            key[k] = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
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

    // Above `to` all are taken; of the `within` keys from `from` to `to`, `need` are.
    unsigned from = low, to = high, need = want, within = size;
    while (need < within && from < to) {
        const int bits = 32 - __clz((int)(to - from)), shift = bits > BITS ? bits - BITS : 0;
#pragma unroll
        for (int b = 0; b < SHARE; b++) bins[b * THREADS + threadIdx.x] = 0;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (k * THREADS + (int)threadIdx.x < size && key[k] >= from && key[k] <= to)
                atomicAdd(&bins[(key[k] - from) >> shift], 1u);
        __syncthreads();
        const int top = BINS - 1 - (int)threadIdx.x * SHARE;  // bins from the highest down
        unsigned mine = 0;
#pragma unroll
        for (int b = 0; b < SHARE; b++) mine += bins[top - b];
        unsigned above = before(mine, sums);
        if (above < need && above + mine >= need)
            for (int b = 0; b < SHARE; b++) {
                const unsigned inside = bins[top - b];
                if (above + inside >= need) {
                    found[0] = top - b, found[1] = above, found[2] = inside;
                    break;
                }
                above += inside;
            }
        __syncthreads();
        const unsigned at = from + (found[0] << shift), last = at + ((1u << shift) - 1);
        from = at;
        to = min(to, last);
        need -= found[1];
        within = found[2];
        __syncthreads();
    }

    // In the order of their places: how many are sure, and how many may be, before each 32.
    unsigned votes[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const bool real = k * THREADS + (int)threadIdx.x < size;
        const unsigned sure = __ballot_sync(FULL, real && key[k] > to);
        votes[k] = __ballot_sync(FULL, real && key[k] >= from && key[k] <= to);
        if (lane == 0) groups[k * (THREADS / 32) + warp] = __popc(sure) | __popc(votes[k]) << 16;
    }
    __syncthreads();
    const int count = EACH * (THREADS / 32), own = (count + THREADS - 1) / THREADS;
    unsigned mine = 0;
    for (int g = 0; g < own; g++)
        if ((int)threadIdx.x * own + g < count) mine += groups[threadIdx.x * own + g];
    unsigned upto = before(mine, sums);
    for (int g = 0; g < own; g++)
        if ((int)threadIdx.x * own + g < count) {
            const unsigned inside = groups[threadIdx.x * own + g];
            groups[threadIdx.x * own + g] = upto;
            upto += inside;
        }
    __syncthreads();
    const unsigned below = (1u << lane) - 1;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int i = k * THREADS + threadIdx.x;
        const bool sure = i < size && key[k] > to;
        const unsigned surely = __ballot_sync(FULL, sure), group = groups[k * (THREADS / 32) + warp];
        const unsigned ties = (group >> 16) + __popc(votes[k] & below);
        if (sure || ((votes[k] >> lane & 1) && ties < need))
            chosen[(long long)cache * picks + out + (group & 0xffff) + __popc(surely & below) + min(ties, need)] = i;
    }
}
