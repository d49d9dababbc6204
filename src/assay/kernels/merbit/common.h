// What the kernels of sparse products share. A warp is 32 lanes; -DVALUE=float|double, -DWARPS=n of a block.
#pragma once

#define FULL 0xffffffffu
#define THREADS (32 * WARPS)

#ifdef ASSAY_ON_CPU
alignas(16) static char shared_bytes[1 << 18];
#else
extern __shared__ __align__(16) char shared_bytes[];
#endif

__device__ __forceinline__ VALUE from_below(VALUE value, int by) { return __shfl_up_sync(FULL, value, by); }

// What the lanes below carry into each lane: the sum of their open rows since the last row end below it.
__device__ __forceinline__ VALUE carried_in(VALUE open, bool ends, int lane)
{
    const unsigned closed = __ballot_sync(FULL, ends) & (FULL >> (31 - lane));
    const int reach = lane - (closed ? 31 - __clz((int)closed) : 0);  // lanes back to the last row end
    VALUE sum = open;
    for (int by = 1; __any_sync(FULL, reach >= by); by <<= 1) {
        const VALUE below = from_below(sum, by);
        if (reach >= by) sum += below;
    }
    const VALUE in = from_below(sum, 1);
    return lane ? in : (VALUE)0;
}
