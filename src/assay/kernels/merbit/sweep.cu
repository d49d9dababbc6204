// A sparse product whose sums lie in shared memory: nonzeros come in the order of columns, all blocks sweep over x at once.
//
// Compiled as spmv.cu is, with -DEACH=n (steps of 32 entries that a warp has on their way) besides. A unit is a group of
// rows, as many as have their sums in shared memory, and a range of columns. Neighbouring lanes want neighbouring columns:
// what they want of x lies in few sectors, and is in the caches since all blocks are at about the same columns.

#include "common.h"

// word: of each entry, its column within a strip of 65,536 (low half) and its sum (high half). strip: of 32 entries each.
// begin: the first 32 entries of each unit; first: the first sum of each group. target: a sum's row, ~row where other
// sums are added to it. What fills up 32 entries goes to a sum behind the last.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
sweep(const unsigned* __restrict__ word, const VALUE* __restrict__ val, const int* __restrict__ strip,
      const int* __restrict__ begin, const int* __restrict__ first, const int* __restrict__ target,
      const VALUE* __restrict__ x, VALUE* __restrict__ y, int units, int groups)
{
    VALUE* sums = (VALUE*)shared_bytes;
    const int lane = threadIdx.x & 31, own = threadIdx.x >> 5;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const int from = first[unit % groups], count = first[unit % groups + 1] - from, last = begin[unit + 1];
        for (int i = threadIdx.x; i <= count; i += THREADS) sums[i] = 0;
        __syncthreads();
        for (int at = begin[unit] + own * EACH; at < last; at += WARPS * EACH) {
            unsigned its[EACH];
            VALUE product[EACH];
            int base[EACH];
#pragma unroll
            for (int k = 0; k < EACH; k++)
                if (at + k < last) {
                    const unsigned entry = (unsigned)(at + k) * 32 + lane;
                    base[k] = __ldg(strip + at + k) << 16;
                    its[k] = __ldcs(word + entry);
                    product[k] = __ldcs(val + entry);  // read once: leave the cache to x
                }
#pragma unroll
            for (int k = 0; k < EACH; k++)
                if (at + k < last) product[k] *= __ldg(x + (base[k] + (int)(its[k] & 0xffff)));
#pragma unroll
            for (int k = 0; k < EACH; k++)
                if (at + k < last) atomicAdd(sums + (its[k] >> 16), product[k]);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += THREADS) {
            const int row = __ldcs(target + from + i);
            if (row >= 0)
                y[row] = sums[i];
            else
                atomicAdd(y + ~row, sums[i]);
        }
        __syncthreads();
    }
}

// Rows to which several sums are added, and those without nonzeros.
extern "C" __global__ void clear(const int* rows, VALUE* y, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[rows[i]] = 0;
}
