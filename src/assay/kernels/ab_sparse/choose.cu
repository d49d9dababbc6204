// The blocks of each head with the highest scores: a block of threads a head and cache, scores in registers.
//
// Compiled by NVRTC with -DTHREADS=n -DEACH=n (scores a thread at most) -DBITS=n on a GPU, and by g++ over
// engine/cuda_on_cpu.h in tests. A histogram over equal steps from the lowest score to the highest says in which step the last to be taken
// lies; if a warp can hold what lies there, that is compared one with another. Else the scores, as whole numbers in their
// order, are narrowed down by histograms of BITS bits at a time. Equal scores go by place. Who is taken is marked in words
// of 32 places, so that few threads write them down in their order. Instructions bind: each is issued for every score.

#define FULL 0xffffffffu
#define BINS (1 << BITS)
#define WARPS (THREADS / 32)
#define SHARE (BINS / THREADS)  // bins of a thread
#define WORDS (EACH * WARPS)
#define OWN ((WORDS + THREADS - 1) / THREADS)  // words of a thread
#define LOWEST -3.402823466e38f
#define NONE __uint_as_float(0xff800000u)  // minus infinity: below all scores

// The sum of what this lane and those before it have.
__device__ __forceinline__ unsigned upto(unsigned mine)
{
    const int lane = threadIdx.x & 31;
    for (int by = 1; by < 32; by <<= 1) {
        const unsigned other = __shfl_up_sync(FULL, mine, by);
        if (lane >= by) mine += other;
    }
    return mine;
}

// Whole numbers in the order of scores, and back.
__device__ __forceinline__ unsigned key_of(float score)
{
    const unsigned bits = __float_as_uint(score);
    return bits ^ ((unsigned)((int)bits >> 31) | 0x80000000u);
}

__device__ __forceinline__ float score_of(unsigned key)
{
    return __uint_as_float(key ^ (~(unsigned)((int)key >> 31) | 0x80000000u));
}

// Equal steps from a score on. Added to 2^23, a number below 2^12 stands in the lowest bits, rounded: in their order.
struct Steps {
    float from, by;
    __device__ __forceinline__ int of(float score) const
    {
        return __float_as_uint(fmaf(score - from, by, 8388608.0f)) & 0xfff;
    }
};

// What may still be the last to be taken: of the `within` scores from `from` to `to`, `need` are; above `to` all are.
struct Open {
    float from, to;
    unsigned need, within;
};

// The bin in which the last to be taken lies, from the highest down; that many are needed of it, and so many lie in it.
__device__ __forceinline__ int pick(const unsigned* bins, unsigned* sums, Open& open)
{
    const int lane = threadIdx.x & 31;
    unsigned mine = 0;
#pragma unroll
    for (int b = 0; b < SHARE; b++) mine += bins[BINS - 1 - (int)threadIdx.x * SHARE - b];
    mine = __reduce_add_sync(FULL, mine);
    if (lane == 0) sums[threadIdx.x >> 5] = mine;
    __syncthreads();
    mine = lane < WARPS ? sums[lane] : 0;
    unsigned sum = upto(mine);
    const int warp = __ffs(__ballot_sync(FULL, sum >= open.need)) - 1;
    unsigned above = __shfl_sync(FULL, sum - mine, warp);
    int at = BINS - 1 - (warp * 32 + lane) * SHARE;  // every warp looks at that warp's bins
    mine = 0;
#pragma unroll
    for (int b = 0; b < SHARE; b++) mine += bins[at - b];
    sum = upto(mine);
    const int last = __ffs(__ballot_sync(FULL, above + sum >= open.need)) - 1;
    above += __shfl_sync(FULL, sum - mine, last);
    at = BINS - 1 - (warp * 32 + last) * SHARE;
    for (; above + bins[at] < open.need; at--) above += bins[at];
    open.need -= above;
    open.within = bins[at];
    return at;
}

__device__ __forceinline__ void clear(unsigned* bins)
{
#pragma unroll
    for (int b = 0; b < SHARE; b++) bins[b * THREADS + threadIdx.x] = 0;
}

// At most 32 scores are left, those of one step: every warp compares them one with another.
__device__ __forceinline__ void compare(Open& open, const float (&score)[EACH], int own, Steps steps, int step,
                                        float* few, unsigned* count)
{
    const unsigned lane = threadIdx.x & 31;
    unsigned its = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (k < own && steps.of(score[k]) == step) its |= 1u << k;
    if (its)  // few warps have any
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (its >> k & 1) few[atomicAdd(count, 1u)] = score[k];
    __syncthreads();
    const float mine = lane < open.within ? few[lane] : NONE;
    unsigned above = 0, alike = 0;
    for (unsigned i = 0; i < open.within; i++) {
        const float other = __shfl_sync(FULL, mine, i);
        above += other > mine;
        alike += other == mine;
    }
    const bool last = lane < open.within && above < open.need && above + alike >= open.need;
    const int at = __ffs(__ballot_sync(FULL, last)) - 1;
    open.from = open.to = __shfl_sync(FULL, mine, at);
    open.need -= __shfl_sync(FULL, above, at);
    open.within = __shfl_sync(FULL, alike, at);
}

// Many are left, however they lie: histograms of the bits in which they may differ. `bins[turn]` are clear.
__device__ __forceinline__ void narrow(Open& open, const float (&score)[EACH], unsigned (*bins)[BINS], unsigned* sums,
                                       int turn)
{
    unsigned from = key_of(open.from), to = key_of(open.to);
    for (; open.need < open.within && from < to; turn ^= 1) {
        const int bits = 32 - __clz((int)(to - from)), shift = bits > BITS ? bits - BITS : 0;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const unsigned key = key_of(score[k]);
            if (key - from <= to - from) atomicAdd(&bins[turn][(key - from) >> shift], 1u);
        }
        __syncthreads();
        clear(bins[turn ^ 1]);  // for the next turn: nobody reads them any more
        from += (unsigned)pick(bins[turn], sums, open) << shift;
        to = min(to, from + ((1u << shift) - 1));
    }
    open.from = score_of(from), open.to = score_of(to);
}

// The places of what is taken, in their order: how many are sure, and how many may be, before each 32.
__device__ __forceinline__ void write_down(Open open, const float (&score)[EACH], unsigned* surely, unsigned* perhaps,
                                           unsigned* sums, int* place)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const bool ties = open.need < open.within;
    const float bound = ties ? score_of(key_of(open.to) + 1) : open.from;  // the next number after `to`
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const unsigned sure = __ballot_sync(FULL, score[k] >= bound);
        if (lane == 0) surely[k * WARPS + warp] = sure;
    }
    if (ties)
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const unsigned may = __ballot_sync(FULL, score[k] >= open.from && score[k] <= open.to);
            if (lane == 0) perhaps[k * WARPS + warp] = may;
        }
    __syncthreads();
    const int word = threadIdx.x * OWN, end = min(word + OWN, WORDS);
    unsigned mine = 0;
    for (int w = word; w < end; w++) mine += __popc(surely[w]) | (ties ? __popc(perhaps[w]) << 16 : 0);
    unsigned sum = upto(mine);
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    sum += __reduce_add_sync(FULL, lane < warp ? sums[lane] : 0) - mine;
    for (int w = word; w < end; w++) {
        const unsigned sure = surely[w];
        for (unsigned left = ties ? sure | perhaps[w] : sure; left; left &= left - 1) {
            const int bit = __ffs(left) - 1;
            const unsigned tied = sum >> 16;
            const bool taken = sure >> bit & 1;
            if (taken || tied < open.need) place[(sum & 0xffff) + min(tied, open.need)] = w * 32 + bit;
            sum += taken ? 1 : 1 << 16;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) choose(const float* scored, const int* first, const int* begin,
                                                             int* chosen, int blocks, int picks, int heads)
{
    __shared__ unsigned bins[2][BINS], sums[32], surely[WORDS], perhaps[WORDS], count;
    __shared__ float few[32], ends[2][32];
    const int head = blockIdx.x % heads, cache = blockIdx.x / heads;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int start = first[head], size = first[head + 1] - start, out = begin[head], want = begin[head + 1] - out;
    const float* scores = scored + (long long)cache * blocks + start + threadIdx.x;
    if (!want) return;

    const int own = (size - (int)threadIdx.x + THREADS - 1) / THREADS;  // scores of this thread
    float score[EACH], least = -LOWEST, most = LOWEST;
    if (threadIdx.x == 0) count = 0;
    clear(bins[0]);
#pragma unroll
    for (int k = 0; k < EACH; k++) score[k] = k < own ? scores[k * THREADS] : NONE;
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (k < own) {
            score[k] = fmaxf(score[k], LOWEST) + 0.0f;  // one zero; what is no number lies lowest
            least = fminf(least, score[k]);
            most = fmaxf(most, score[k]);
        }
    for (int by = 16; by; by >>= 1) {
        least = fminf(least, __shfl_xor_sync(FULL, least, by));
        most = fmaxf(most, __shfl_xor_sync(FULL, most, by));
    }
    if (lane == 0) ends[0][warp] = least, ends[1][warp] = most;
    __syncthreads();
    least = ends[0][lane % WARPS], most = ends[1][lane % WARPS];
    for (int by = 16; by; by >>= 1) {
        least = fminf(least, __shfl_xor_sync(FULL, least, by));
        most = fmaxf(most, __shfl_xor_sync(FULL, most, by));
    }

    Open open = {least, most, (unsigned)want, (unsigned)size};
    const Steps steps = {least, (BINS - 1) / (most - least)};
    if (open.need < open.within && steps.by > 0 && steps.by < 1e30f) {
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (k < own) atomicAdd(&bins[0][steps.of(score[k])], 1u);
        __syncthreads();
        clear(bins[1]);
        const int step = pick(bins[0], sums, open);
        if (open.within <= 32)
            compare(open, score, own, steps, step, few, &count);
        else
            open.need = want, open.within = size;
    }
    if (open.within == size) narrow(open, score, bins, sums, steps.by > 0 && steps.by < 1e30f);

    write_down(open, score, surely, perhaps, sums, chosen + (long long)cache * picks + out);
}
