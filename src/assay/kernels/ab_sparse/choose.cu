// The blocks of each head with the highest scores: a block of threads a head and cache, scores in registers.
//
// Compiled by NVRTC with -DTHREADS=n -DEACH=n (scores a thread at most) -DBITS=n on a GPU, and by g++ over
// engine/cuda_on_cpu.h in tests. A histogram over equal steps from the lowest score to the highest says in which step the
// last to be taken lies; if a warp can hold what lies there, that is compared one with another. Else the scores, as whole
// numbers in their order, are narrowed down by histograms of BITS bits at a time. Equal scores go by place. Who is taken
// is marked in words of 32 places, so that few threads write them down in their order.

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

// At most 32 scores are left, those of one step: what lies above is marked, and of those a warp marks who is taken, each
// compared with all.
__device__ __forceinline__ void settle(Open open, const float (&score)[EACH], const int (&step)[EACH], int last,
                                       unsigned* surely, float* few, int* place, unsigned* count)
{
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    unsigned its = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const unsigned sure = __ballot_sync(FULL, step[k] > last);
        if (lane == 0) surely[k * WARPS + warp] = sure;
        if (step[k] == last) its |= 1u << k;
    }
    if (its)  // few warps have any
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (its >> k & 1) {
                const unsigned at = atomicAdd(count, 1u);
                few[at] = score[k], place[at] = k * THREADS + (int)threadIdx.x;
            }
    __syncthreads();
    if (warp == 0 && lane < open.within) {
        unsigned before = 0;
        for (unsigned i = 0; i < open.within; i++)
            before += few[i] > few[lane] || (few[i] == few[lane] && place[i] < place[lane]);
        if (before < open.need) atomicOr(&surely[place[lane] >> 5], 1u << (place[lane] & 31));
    }
    __syncthreads();
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

// Marks what is taken, and where the last ones are equal what may be.
__device__ __forceinline__ void mark(Open open, const float (&score)[EACH], unsigned* surely, unsigned* perhaps)
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
}

// The places of what is taken, in their order: how many are sure, and how many may be, before each 32.
__device__ __forceinline__ void write_down(bool ties, unsigned need, const unsigned* surely, const unsigned* perhaps,
                                           unsigned* sums, int* place)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
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
            if (taken || tied < need) place[(sum & 0xffff) + min(tied, need)] = w * 32 + bit;
            sum += taken ? 1 : 1 << 16;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) choose(const float* scored, const int* first, const int* begin,
                                                             int* chosen, int blocks, int picks, int heads)
{
    __shared__ unsigned bins[2][BINS], sums[32], ends[2][32], surely[WORDS], perhaps[WORDS], count;
    __shared__ float few[32];
    __shared__ int spots[32];
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
    // Scores as whole numbers in their order: for these a warp has one instruction.
    unsigned lowest = __reduce_min_sync(FULL, key_of(least)), highest = __reduce_max_sync(FULL, key_of(most));
    if (lane == 0) ends[0][warp] = lowest, ends[1][warp] = highest;
    __syncthreads();
    lowest = __reduce_min_sync(FULL, ends[0][lane % WARPS]), highest = __reduce_max_sync(FULL, ends[1][lane % WARPS]);
    least = score_of(lowest), most = score_of(highest);

    Open open = {least, most, (unsigned)want, (unsigned)size};
    const Steps steps = {least, (BINS - 1) / (most - least)};
    const bool spread = want < size && steps.by > 0 && steps.by < 1e30f;
    bool settled = false;
    if (spread) {
        int step[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            step[k] = k < own ? steps.of(score[k]) : -1;
            if (k < own) atomicAdd(&bins[0][step[k]], 1u);
        }
        __syncthreads();
        clear(bins[1]);
        Open left = open;
        const int last = pick(bins[0], sums, left);
        settled = left.within <= 32;
        if (settled) settle(left, score, step, last, surely, few, spots, &count);
    }
    if (!settled) {
        narrow(open, score, bins, sums, spread);
        mark(open, score, surely, perhaps);
    }
    write_down(!settled && open.need < open.within, open.need, surely, perhaps, sums,
               chosen + (long long)cache * picks + out);
}
