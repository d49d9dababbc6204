// Every even number of a range as a sum of two primes: sieve and search on chip, and the paper's thread a number.
//
// Compiled by NVRTC with -DWORDS=n (32-bit words of a tile in shared memory) -DBACK=n (how far back a tile's sieve
// begins; every small prime lies below) on a GPU, and by g++ over engine/cuda_on_cpu.h in tests.
// Bit j of a sieve that begins at q_low stands for q_low + 2 j: odd numbers only.

#define FULL 0xffffffffu
#define CHUNK 8    // words a thread of a warp searches at a time
#define COUNTED 384  // smallest primes counted in shared memory; the rarer ones in the device's
typedef unsigned long long u64;

#ifdef ASSAY_ON_CPU
static unsigned sieve[WORDS];
#else
extern __shared__ unsigned sieve[];
#endif

// The first odd multiple of p that is at least `low` (odd) and at least p * p, as a bit of the sieve.
__device__ __forceinline__ u64 first_multiple(u64 low, unsigned p, double inverse)
{
    const u64 square = (u64)p * p;
    if (square >= low) return (square - low) >> 1;
    long long quotient = (long long)((double)low * inverse);  // off by one at most: low < 2^53
    long long rest = (long long)low - quotient * (long long)p;
    if (rest < 0) rest += p;
    if (rest >= (long long)p) rest -= p;
    u64 up = rest ? p - rest : 0;  // to the next multiple, odd or even
    if (up & 1) up += p;           // low is odd: an odd distance ends at an even number
    return up >> 1;
}

// Fill the block's sieve with the primes of [q_low, q_low + 64 WORDS): composites are marked, then all is turned.
// wheels: bit patterns of groups of small primes one after the other, `lengths` words each, beginning at the number 1.
__device__ void sieve_tile(u64 q_low, const unsigned* wheels, const int* lengths, int groups, const unsigned* primes,
                           const double* inverses, int shared_by_warp, int count)
{
    const u64 first_word = (q_low - 1) >> 6;  // q_low = 1 (mod 64): words of the patterns are words of the tile
    for (int g = 0; g < groups; g++) {
        const unsigned length = lengths[g], offset = (unsigned)(first_word % length);
        for (int w = threadIdx.x; w < WORDS; w += blockDim.x) {
            const unsigned composite = wheels[(offset + w) % length];
            sieve[w] = g ? sieve[w] | composite : composite;
        }
        wheels += length;
    }
    __syncthreads();
    const unsigned bits = 32u * WORDS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    for (int i = warp; i < shared_by_warp; i += warps) {  // many multiples in a tile: a warp to a prime
        const unsigned p = primes[i];
        const u64 start = first_multiple(q_low, p, inverses[i]) + (u64)lane * p;
        for (u64 j = start; j < bits; j += 32u * p) atomicOr(&sieve[j >> 5], 1u << (j & 31));
    }
    for (int i = shared_by_warp + threadIdx.x; i < count; i += blockDim.x) {
        const unsigned p = primes[i];
        for (u64 j = first_multiple(q_low, p, inverses[i]); j < bits; j += p) atomicOr(&sieve[j >> 5], 1u << (j & 31));
    }
    __syncthreads();
    for (int w = threadIdx.x; w < WORDS; w += blockDim.x) sieve[w] = ~sieve[w];
    __syncthreads();
}

// Words of even numbers that a tile answers for: those whose every n - p lies in its sieve, and one word of slack.
#define ANSWERED (WORDS - BACK / 64 - 1)

// Verify even numbers n in [begin, end): OR the sieve, shifted by each small prime in turn, into the verified bits.
// histogram[i]: how many n have small[i] as their least prime. first[i]: the least such n, for i >= careful.
// left[0] counts n that no small prime settled; left[1..] are the first of them.
extern "C" __global__ void __launch_bounds__(1024) goldbach(u64 begin, u64 end, const unsigned* wheels, const int* lengths, int groups,
                                    const unsigned* primes, const double* inverses, int shared_by_warp, int count,
                                    const unsigned* small, int smalls, int careful, u64* histogram, u64* first,
                                    u64* left, int most_left)
{
    __shared__ unsigned counts[COUNTED];
    for (int i = threadIdx.x; i < COUNTED; i += blockDim.x) counts[i] = 0;
    const u64 span = 64ull * ANSWERED;
    const u64 tiles = (end - begin + span - 1) / span;
    const int lane = threadIdx.x & 31;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 low = begin + tile * span;  // = 0 (mod 64)
        __syncthreads();  // the tile before is done with
        sieve_tile(low - BACK + 1, wheels, lengths, groups, primes, inverses, shared_by_warp, count);
        for (int base = (threadIdx.x >> 5) * 32 * CHUNK; base < ANSWERED; base += (blockDim.x >> 5) * 32 * CHUNK) {
            unsigned open[CHUNK];  // bits of n not verified yet
#pragma unroll
            for (int k = 0; k < CHUNK; k++) {
                const int w = base + 32 * k + lane;
                const u64 n = low + 64ull * w;
                open[k] = w >= ANSWERED || n >= end ? 0 : n + 64 <= end ? FULL : (1u << ((end - n) >> 1)) - 1;
            }
            for (int i = 0; i < smalls; i++) {
                // n - p is bit j + (BACK - 1 - p) / 2 of the sieve if n is bit j of the tile.
                const int shift = (BACK - 1 - (int)small[i]) >> 1;
                unsigned rest = 0, number = 0;
#pragma unroll
                for (int k = 0; k < CHUNK; k++) {
                    const int w = base + 32 * k + lane;
                    if (w < ANSWERED) {
                        const unsigned* from = sieve + w + (shift >> 5);
                        const unsigned prime = __funnelshift_r(from[0], from[1], shift & 31);
                        const unsigned fresh = open[k] & prime;
                        open[k] &= ~prime;
                        rest |= open[k];
                        number += __popc(fresh);
                        if (i >= careful && fresh) {
                            const u64 n = low + 64ull * w + 2 * (__ffs(fresh) - 1);
                            if (n < first[i]) atomicMin(&first[i], n);
                        }
                    }
                }
                number = __reduce_add_sync(FULL, number);
                if (lane == 0 && number) {
                    if (i < COUNTED) atomicAdd(&counts[i], number);
                    else atomicAdd(&histogram[i], (u64)number);
                }
                if (!__any_sync(FULL, rest)) break;
            }
#pragma unroll
            for (int k = 0; k < CHUNK; k++)
                for (unsigned bits = open[k]; bits; bits &= bits - 1) {
                    const u64 place = atomicAdd(&left[0], 1ull);
                    if (place < (u64)most_left) left[1 + place] = low + 64ull * (base + 32 * k + lane) + 2 * (__ffs(bits) - 1);
                }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < COUNTED && i < smalls; i += blockDim.x)
        if (counts[i]) atomicAdd(&histogram[i], (u64)counts[i]);
}

// ------------------------------------------------------------------------------- the paper's two phases

// Phase 0: the primes of [q_low, ...) into the device's memory, a tile a block.
extern "C" __global__ void __launch_bounds__(1024) sieve_segment(u64 q_low, u64 words, const unsigned* wheels, const int* lengths, int groups,
                                         const unsigned* primes, const double* inverses, int shared_by_warp, int count,
                                         unsigned* segment)
{
    const u64 from = (u64)blockIdx.x * WORDS;
    sieve_tile(q_low + 64 * from, wheels, lengths, groups, primes, inverses, shared_by_warp, count);
    for (int w = threadIdx.x; w < WORDS; w += blockDim.x)
        if (from + w < words) segment[from + w] = sieve[w];
}

// Phase 1: a thread an even number, small primes in turn until n - p is prime.
extern "C" __global__ void per_number(u64 begin, u64 numbers, const unsigned* segment, const unsigned* small, int smalls,
                                      u64* histogram, u64* left, int most_left)
{
    __shared__ unsigned counts[COUNTED];
    for (int i = threadIdx.x; i < COUNTED; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    const u64 j = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (j < numbers) {
        int i = 0;
        for (; i < smalls; i++) {
            const u64 bit = j + ((BACK - 1 - small[i]) >> 1);
            if (segment[bit >> 5] >> (bit & 31) & 1) break;
        }
        if (i == smalls) {
            const u64 place = atomicAdd(&left[0], 1ull);
            if (place < (u64)most_left) left[1 + place] = begin + 2 * j;
        } else if (i < COUNTED) atomicAdd(&counts[i], 1u);
        else atomicAdd(&histogram[i], 1ull);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < COUNTED && i < smalls; i += blockDim.x)
        if (counts[i]) atomicAdd(&histogram[i], (u64)counts[i]);
}
