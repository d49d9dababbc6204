// Sparse matrix times vector: MERBIT's kernel, and the ones it is compared with.
//
// Compiled by NVRTC with -DVALUE=float|double -DITEMS=n on a GPU, and by g++ over engine/cuda_on_cpu.h in tests.
// A warp's tile is 32 * ITEMS items of the merge list: nonzeros (bit 0) and row ends (bit 1), ITEMS (odd: no two lanes
// then meet in a bank of shared memory; below 32) in a row to a lane.

#include "common.h"

// bits: one an item of the merge list, 1 where a row ends. row[w]: the first row of warp w's tile; row[warps] = rows.
// Nonzeros stay where the matrix has them: neighbours of a row are loaded by neighbouring lanes, and often find what
// they want of x in one sector. Row pointers are not read.
extern "C" __global__ void merbit(const unsigned* bits, const int* row, const int* col, const VALUE* val, const VALUE* x,
                                  VALUE* y, VALUE* carry, int warps, int rows, long long items)
{
    __shared__ VALUE products[WARPS * 32 * ITEMS];
    const int lane = threadIdx.x & 31, own = threadIdx.x >> 5;
    const int warp = blockIdx.x * WARPS + own;
    if (warp >= warps) return;  // whole warps: nobody waits for them
    const long long tile = (long long)warp * 32 * ITEMS;
    const int count = items - tile < 32 * ITEMS ? (int)(items - tile) : 32 * ITEMS;
    const int first = row[warp], ended = row[warp + 1] - first, nonzeros = count - ended;
    const int* cols = col + (tile - first);
    const VALUE* vals = val + (tile - first);

    VALUE product[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        const int j = 32 * k + lane;
        product[k] = 0;
#ifdef PATTERN  // every value of a column is the same: it is in x already
        if (j < nonzeros) product[k] = __ldg(x + __ldcs(cols + j));
#else
        if (j < nonzeros) product[k] = __ldcs(vals + j) * __ldg(x + __ldcs(cols + j));  // read once: leave the cache to x
#endif
    }
    if (!ended) {  // a piece of one long row: nothing to write but what is carried on
        VALUE sum = 0;
#pragma unroll
        for (int k = 0; k < ITEMS; k++) sum += product[k];
        for (int by = 16; by; by >>= 1) sum += __shfl_down_sync(FULL, sum, by);
        if (lane == 0) carry[warp] = sum;
        return;
    }
    VALUE* mine_of = products + own * 32 * ITEMS;
#pragma unroll
    for (int k = 0; k < ITEMS; k++) mine_of[32 * k + lane] = product[k];

    // This lane's items: ITEMS bits of the tile's ITEMS words, across two of them.
    const unsigned* words = bits + (long long)warp * ITEMS + (lane * ITEMS >> 5);
    const unsigned mine = __funnelshift_r(words[0], words[1], lane * ITEMS & 31) & ((1u << ITEMS) - 1);
    const int ends = __popc(mine);
    int before = ends;  // row ends of the lanes below
    for (int by = 1; by < 32; by <<= 1) {
        int other = __shfl_up_sync(FULL, before, by);
        if (lane >= by) before += other;
    }
    before -= ends;
    __syncwarp();

    const int left = count - lane * ITEMS;  // items of this lane that exist
    VALUE sum = 0, opened = 0;  // opened: of the row that a lane below began, up to its end here
    int j = lane * ITEMS - before;
    bool begun = true;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (mine >> i & 1) {
            if (begun) opened = sum;
            product[i] = sum;
            begun = false;
            sum = 0;
        } else if (i < left)
            sum += mine_of[j++];
    }
    const VALUE in = carried_in(sum, ends > 0, lane);
    if (lane == 31) carry[warp] = ends ? sum : sum + in;
    const bool stage = ended > 64;  // many short rows: written side by side, from where the products were
    if (stage) __syncwarp();
    VALUE* target = stage ? mine_of : y + first;
    int slot = before;
#pragma unroll
    for (int i = 0; i < ITEMS; i++)
        if (mine >> i & 1) {
            target[slot] = slot == before ? opened + in : product[i];
            slot++;
        }
    if (stage) {
        __syncwarp();
        for (int r = lane; r < ended; r += 32) y[first + r] = mine_of[r];
    }
}

// Rows that go on over the end of a tile: their carried sums, summed by warps, then added.
extern "C" __global__ void merbit_carries(const int* row, const VALUE* carry, VALUE* y, int warps, int rows)
{
    const int w = blockIdx.x * blockDim.x + threadIdx.x;
    const int lane = threadIdx.x & 31;
    const int mine = w < warps ? row[w + 1] : -1;  // the row that is open at the end of tile w
    VALUE sum = mine >= 0 ? carry[w] : (VALUE)0;
    for (int by = 1; by < 32; by <<= 1) {
        VALUE other = from_below(sum, by);
        int its = __shfl_up_sync(FULL, mine, by);
        if (lane >= by && its == mine) sum += other;
    }
    const int next = __shfl_down_sync(FULL, mine, 1);
    if (mine >= 0 && mine < rows && (lane == 31 || next != mine) && sum != 0) atomicAdd(y + mine, sum);
}

// x in the order of its columns' popularity: what most nonzeros want lies together, and stays in the first cache.
extern "C" __global__ void reorder(const int* order, const VALUE* x, VALUE* sorted, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sorted[i] = x[order[i]];
}

// ---------------------------------------------------------------------------------------------- rivals

// A row to a group of GROUP lanes (Bell and Garland's CSR-vector).
template <int GROUP>
__device__ void csr_rows(const int* start, const int* col, const VALUE* val, const VALUE* x, VALUE* y, int rows)
{
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long r = thread / GROUP;
    const int lane = thread % GROUP;
    VALUE sum = 0;
    if (r < rows)
        for (int j = start[r] + lane; j < start[r + 1]; j += GROUP) sum += __ldcs(val + j) * __ldg(x + __ldcs(col + j));
    for (int by = GROUP / 2; by; by >>= 1) sum += __shfl_down_sync(FULL, sum, by, GROUP);
    if (lane == 0 && r < rows) y[r] = sum;
}

extern "C" __global__ void csr_vector(const int* start, const int* col, const VALUE* val, const VALUE* x, VALUE* y,
                                      int rows, int group)
{
    if (group == 2) csr_rows<2>(start, col, val, x, y, rows);
    else if (group == 4) csr_rows<4>(start, col, val, x, y, rows);
    else if (group == 8) csr_rows<8>(start, col, val, x, y, rows);
    else if (group == 16) csr_rows<16>(start, col, val, x, y, rows);
    else csr_rows<32>(start, col, val, x, y, rows);
}

// Merrill and Garland's merge path: the same tiles, found by binary search at each call, row ends read from the
// row pointers, products staged in shared memory.
#define MERGED 7  // items a lane
__device__ __forceinline__ int rows_before(const int* start, int rows, long long diagonal)
{
    int low = 0, high = rows;  // row i ends at item start[i + 1] + i
    while (low < high) {
        int middle = (low + high) >> 1;
        if ((long long)start[middle + 1] + middle < diagonal) low = middle + 1;
        else high = middle;
    }
    return low;
}

extern "C" __global__ void merge_path(const int* start, const int* col, const VALUE* val, const VALUE* x, VALUE* y,
                                      VALUE* carry, int* carry_row, int warps, int rows, long long nonzeros)
{
    __shared__ VALUE product[WARPS * 32 * MERGED];
    __shared__ int ends_at[WARPS * (32 * MERGED + 1)];
    const int lane = threadIdx.x & 31, own = threadIdx.x >> 5;
    const int warp = blockIdx.x * WARPS + own;
    if (warp >= warps) return;
    const long long all = rows + nonzeros, from = (long long)warp * 32 * MERGED;
    const long long to = from + 32 * MERGED < all ? from + 32 * MERGED : all;
    int border = lane < 2 ? rows_before(start, rows, lane ? to : from) : 0;
    const int row_from = __shfl_sync(FULL, border, 0), row_to = __shfl_sync(FULL, border, 1);
    const long long nz_from = from - row_from, nz_to = to - row_to;
    VALUE* products = product + own * 32 * MERGED;
    int* ends = ends_at + own * (32 * MERGED + 1);
    for (int j = lane; j < nz_to - nz_from; j += 32)
        products[j] = __ldcs(val + nz_from + j) * __ldg(x + __ldcs(col + nz_from + j));
    for (int r = lane; r < row_to - row_from; r += 32) ends[r] = start[row_from + r + 1] - (int)nz_from;
    __syncwarp();
    // This lane's first row and nonzero of the tile: a search among the staged row ends.
    const int diagonal = lane * MERGED;
    int low = 0, high = row_to - row_from;
    while (low < high) {
        int middle = (low + high) >> 1;
        if (ends[middle] + middle < diagonal) low = middle + 1;
        else high = middle;
    }
    int r = low, j = diagonal - low, count = (int)(to - from) - diagonal;
    VALUE sum = 0, opened = 0;
    int ended = -1;
    for (int i = 0; i < MERGED; i++) {
        if (i >= count) break;
        if (r < row_to - row_from && ends[r] <= j) {
            if (ended < 0) { opened = sum; ended = r; }
            else y[row_from + r] = sum;
            sum = 0;
            r++;
        } else
            sum += products[j++];
    }
    const VALUE in = carried_in(sum, ended >= 0, lane);
    if (ended >= 0) y[row_from + ended] = opened + in;
    if (lane == 31) {
        carry[warp] = ended >= 0 ? sum : sum + in;
        carry_row[warp + 1] = row_to;
    }
}
