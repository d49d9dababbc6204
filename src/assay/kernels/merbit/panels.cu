// MERBIT with x in panels: what a panel of tiles wants of x lies in shared memory before it is multiplied.
//
// Compiled as spmv.cu is, with -DSTRIP=n (columns of a strip) and -DBLOCKS=n (of a multiprocessor) besides. Rows that go
// on over the end of a panel are added by spmv.cu's merbit_carries. Tiles, bits and lanes are as there.

#include "common.h"

// The rows that end in a tile. Its products lie in `staged`, the warp's part of shared memory, from `at` on; there its
// rows' sums lie afterwards, from 0 on. `mine` are this lane's bits. Lane 31 gets what stays open at the tile's end.
__device__ __forceinline__ VALUE rows_of_tile(VALUE* staged, int at, unsigned mine, int lane)
{
    const int ends = __popc(mine);
    int before = ends;  // row ends of the lanes below
    for (int by = 1; by < 32; by <<= 1) {
        int other = __shfl_up_sync(FULL, before, by);
        if (lane >= by) before += other;
    }
    before -= ends;
    VALUE product[ITEMS];
    int j = at + lane * ITEMS - before;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        product[i] = staged[j];
        if (!(mine >> i & 1)) j++;
    }
    __syncwarp();  // all are read: the place is free
    VALUE sum = 0;
    VALUE* row = staged + before;
#pragma unroll
    for (int i = 0; i < ITEMS; i++)
        if (mine >> i & 1) {
            *row++ = sum;
            sum = 0;
        } else
            sum += product[i];
    const VALUE in = carried_in(sum, ends > 0, lane);
    if (ends) staged[before] += in;  // the row that a lane below began
    __syncwarp();
    return ends ? sum : sum + in;
}

// A panel is `per` tiles in a row. The entries of x that its nonzeros want, none twice, fit into shared memory, and
// nonzeros name them by 16 bits: a read of x costs a bank of shared memory instead of a sector of the second cache.
// Blocks stay and take one panel after the other; what the next one wants comes while this one is multiplied.
#define UNIT (16 / (int)sizeof(VALUE))  // values that a thread copies at once
#define SECTOR (2 * UNIT)               // entries of a strip for a panel come by sectors, which are written whole
#define ALIGN 8                         // nonzeros are copied from a multiple of so many on
#define STAGE ((32 * ITEMS + ALIGN - 1 + 255) / 256 * 256)  // nonzeros that a stage has room for
#ifndef DEPTH
#define DEPTH 2  // stages of a warp: one is worked on, the others are on their way
#endif
#ifndef LISTS
#define LISTS 2  // of x: one is multiplied with, another may be on its way
#endif
#ifndef MANY
#define MANY 4  // units that a thread of hand_out has on their way at once
#endif

struct alignas(16) Unit { VALUE of[UNIT]; };
struct alignas(2 * UNIT) Places { unsigned short of[UNIT]; };

#ifdef ASSAY_ON_CPU
template <class T> T streamed(const T* at) { return *at; }
template <class T> void copy_async(T* to, const T* from) { *to = *from; }
inline void copy_part(void* to, const void* from, int bytes)
{
    std::memset(to, 0, 16);
    std::memcpy(to, from, bytes);
}
inline void copies_sent() {}
inline void copies_done() {}
template <int pending> void copies_but() {}
#else
template <int bytes> struct Word;
template <> struct Word<4> { typedef unsigned type; };
template <> struct Word<8> { typedef uint2 type; };
template <> struct Word<16> { typedef uint4 type; };
template <class T> __device__ __forceinline__ T streamed(const T* at)  // read once: leave the cache to others
{
    typedef typename Word<sizeof(T)>::type W;
    const W word = __ldcs((const W*)at);
    return *(const T*)&word;
}
template <class T> __device__ __forceinline__ void copy_async(T* to, const T* from)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    if constexpr (sizeof(T) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"((int)sizeof(T)));
}
// 16 bytes past the first cache, which has no room for what is on its way; zeros behind the first `bytes`.
__device__ __forceinline__ void copy_part(void* to, const void* from, int bytes)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copies_sent() { asm volatile("cp.async.commit_group;"); }
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
template <int pending> __device__ __forceinline__ void copies_but() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }
#endif

// Strips of STRIP columns: a block reads a strip of x as it lies and hands its entries to the panels that want them.
// piece: strip, first unit, last unit; owner: the first piece of each block. place: an entry's column within the strip.
// to: where a sector goes.
extern "C" __global__ void __launch_bounds__(1024) hand_out(const VALUE* __restrict__ x, const int* __restrict__ piece,
                                                            const int* __restrict__ owner,
                                                            const unsigned short* __restrict__ place,
                                                            const int* __restrict__ to, VALUE* __restrict__ wanted,
                                                            int cols)
{
    VALUE* near = (VALUE*)shared_bytes;
    const Places* places = (const Places*)place;
    for (int p = owner[blockIdx.x]; p < owner[blockIdx.x + 1]; p++) {
        const int begin = piece[3 * p] * STRIP, from = piece[3 * p + 1], till = piece[3 * p + 2];
        const int width = cols - begin < STRIP ? cols - begin : STRIP;
        __syncthreads();  // nobody reads the strip before this one any more
        for (int i = threadIdx.x; i < width / UNIT; i += blockDim.x)
            copy_async((Unit*)near + i, (const Unit*)(x + begin) + i);
        for (int i = width / UNIT * UNIT + threadIdx.x; i < width; i += blockDim.x) near[i] = x[begin + i];
        copies_done();
        __syncthreads();
        Places at[MANY];
        int target[MANY];
        auto load = [&](int first) {
#pragma unroll
            for (int k = 0; k < MANY; k++) {
                const int u = first + k * blockDim.x;
                if (u < till) at[k] = streamed(places + u), target[k] = __ldcs(to + u / 2);
            }
        };
        load(from + threadIdx.x);
        for (int first = from + threadIdx.x; first < till; first += MANY * blockDim.x) {
            Unit unit[MANY];
            long long place_of[MANY];
#pragma unroll
            for (int k = 0; k < MANY; k++) {
                const int u = first + k * blockDim.x;
                if (u < till) {
#pragma unroll
                    for (int e = 0; e < UNIT; e++) unit[k].of[e] = near[at[k].of[e]];
                    place_of[k] = (long long)target[k] * SECTOR + u % 2 * UNIT;
                }
            }
            load(first + MANY * blockDim.x);  // on their way while these are written
#pragma unroll
            for (int k = 0; k < MANY; k++)
                if (first + k * (int)blockDim.x < till) *(Unit*)(wanted + place_of[k]) = unit[k];
        }
    }
}

// near: for each nonzero the place of its x in the panel's list. begin: where each panel's list begins. The list is
// `wanted`, handed out before, or, if `gathered`, columns by number, and x is gathered here. carry: of the row that is
// open at the panel's end. Nonzeros are copied by eights: what comes before a tile's first and after its last is
// multiplied too, and never summed.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
merbit_panels(const unsigned* __restrict__ bits, const int* __restrict__ row, const unsigned short* __restrict__ near,
              const VALUE* __restrict__ val, const VALUE* __restrict__ x, const VALUE* __restrict__ wanted,
              const int* __restrict__ columns, const int* __restrict__ begin, VALUE* __restrict__ y,
              VALUE* __restrict__ carry, int panels, int tiles, int per, int room, int gathered, int nonzeros,
              long long items)
{
    // Lists of `room` entries, the warps' stages; of three panels each tile's open sum, its first row's, its bits and
    // its first row: one panel is finished, one multiplied and one on its way.
    VALUE* lists = (VALUE*)shared_bytes;
    const int lane = threadIdx.x & 31, own = threadIdx.x >> 5;
    VALUE* stages = lists + LISTS * room + own * DEPTH * STAGE;
    unsigned short* places = (unsigned short*)(lists + LISTS * room + WARPS * DEPTH * STAGE) + own * DEPTH * STAGE;
    VALUE* opens = (VALUE*)((unsigned short*)(lists + LISTS * room + WARPS * DEPTH * STAGE) + WARPS * DEPTH * STAGE);
    unsigned* words = (unsigned*)(opens + 6 * per);
    int* starts = (int*)(words + 3 * (per * ITEMS + 1));

    auto tiles_of = [&](int p) { return tiles - p * per < per ? tiles - p * per : per; };
    auto copy_list = [&](int list, int length, int turn) {
        VALUE* to = lists + turn % LISTS * room;
        if (gathered)
            for (int i = threadIdx.x; i < length; i += THREADS) copy_async(to + i, x + __ldcs(columns + list + i));
        else
            for (int i = threadIdx.x; i < length / UNIT; i += THREADS)
                copy_async((Unit*)to + i, (const Unit*)(wanted + list) + i);
    };
    auto copy_rows = [&](int p, int turn) {
        const int here = tiles_of(p);
        for (int i = threadIdx.x; i <= here * ITEMS; i += THREADS)
            copy_async(words + turn % 3 * (per * ITEMS + 1) + i, bits + (long long)p * per * ITEMS + i);
        for (int i = threadIdx.x; i <= here; i += THREADS)
            copy_async(starts + turn % 3 * (per + 1) + i, row + p * per + i);
    };

    // The tile that is fetched next, of this panel or one to come, and the rows it begins and ends with.
    int ahead_panel = blockIdx.x, ahead = own, ahead_first = 0, ahead_next = 0, ahead_stage = 0;
    auto look = [&] {
        if (ahead_panel < panels && ahead < tiles_of(ahead_panel)) {
            ahead_first = row[ahead_panel * per + ahead];
            ahead_next = row[ahead_panel * per + ahead + 1];
        }
    };
    auto fetch = [&] {
        if (ahead_panel < panels && ahead < tiles_of(ahead_panel)) {
            const long long tile = (long long)(ahead_panel * per + ahead) * 32 * ITEMS;
            const int count = items - tile < 32 * ITEMS ? (int)(items - tile) : 32 * ITEMS;
            const int from = (int)(tile - ahead_first), at = from % ALIGN, till = at + count - (ahead_next - ahead_first);
            VALUE* value = stages + ahead_stage * STAGE;
            unsigned short* place = places + ahead_stage * STAGE;
            const VALUE* val_from = val + (from - at);
            const unsigned short* near_from = near + (from - at);
            const int left = nonzeros - (from - at);
            const bool inside = left >= STAGE;
#pragma unroll
            for (int s = 0; s < STAGE / (32 * UNIT); s++) {
                const int e = (32 * s + lane) * UNIT;
                if (e < till)
                    copy_part(value + e, val_from + e, inside || left - e >= UNIT ? 16 : (left - e) * (int)sizeof(VALUE));
            }
#pragma unroll
            for (int s = 0; s < STAGE / (32 * ALIGN); s++) {
                const int e = (32 * s + lane) * ALIGN;
                if (e < till) copy_part(place + e, near_from + e, 16);
            }
        }
        copies_sent();
        ahead += WARPS;
        if (ahead_panel < panels && ahead >= tiles_of(ahead_panel)) ahead_panel += gridDim.x, ahead = own;
        ahead_stage = ahead_stage + 1 == DEPTH ? 0 : ahead_stage + 1;
        look();
    };
    auto finish = [&](int p, int turn) {  // rows that go on from tile to tile, when all of a panel are done
        const VALUE *open = opens + turn % 3 * 2 * per, *closed = open + per;
        const int *rows_at = starts + turn % 3 * (per + 1), here = tiles_of(p);
        for (int t = threadIdx.x; t <= here; t += THREADS) {  // and one more: the row that goes on behind the panel
            if (t < here && rows_at[t] == rows_at[t + 1]) continue;
            VALUE sum = t < here ? closed[t] : (VALUE)0;
            for (int b = t - 1; b >= 0; b--) {
                sum += open[b];
                if (rows_at[b] != rows_at[b + 1]) break;
            }
            *(t < here ? y + rows_at[t] : carry + p) = sum;
        }
    };

    int p = blockIdx.x, turn = 0, stage = 0;
    look();
    copy_list(begin[p], begin[p + 1] - begin[p], 0);
    copy_rows(p, 0);
    for (int d = 1; d < DEPTH; d++) fetch();
    int next = p + gridDim.x;
    int list_now = 0, length_now = 0;  // of the panel that comes next; and of the one behind it
    int list = next < panels ? begin[next] : 0, length = next < panels ? begin[next + 1] - list : 0;
    for (; p < panels; p = next, next += gridDim.x, turn++) {
        if (LISTS == 1 && turn) {
            __syncthreads();  // nobody reads the list before this one any more
            copy_list(list_now, length_now, turn);
        }
        copies_done();
        __syncthreads();
        if (turn) finish(p - gridDim.x, turn + 2);
        const VALUE* xs = lists + turn % LISTS * room;
        const unsigned* bits_at = words + turn % 3 * (per * ITEMS + 1);
        const int* rows_at = starts + turn % 3 * (per + 1);
        VALUE *open = opens + turn % 3 * 2 * per, *closed = open + per;
        const int here = tiles_of(p);
        if (next < panels) {
            if (LISTS > 1) copy_list(list, length, turn + 1);
            copy_rows(next, turn + 1);
            list_now = list, length_now = length;
            const int after = next + gridDim.x;
            if (after < panels) list = begin[after], length = begin[after + 1] - list;
        }
        for (int t = own; t < here; t += WARPS) {
            fetch();
            copies_but<DEPTH - 1>();
            __syncwarp();
            const int first = rows_at[t], ended = rows_at[t + 1] - first;
            const long long tile = (long long)(p * per + t) * 32 * ITEMS;
            const int count = items - tile < 32 * ITEMS ? (int)(items - tile) : 32 * ITEMS;
            const int at = (int)(tile - first) % ALIGN, till = at + count - ended;
            VALUE* staged = stages + stage * STAGE;
            const unsigned short* place = places + stage * STAGE;
            stage = stage + 1 == DEPTH ? 0 : stage + 1;
            VALUE sum = 0;
#pragma unroll
            for (int s = 0; s < STAGE / (32 * UNIT); s++) {
                const int u = (32 * s + lane) * UNIT;
                if (u < till) {
                    const Unit value = *(const Unit*)(staged + u);
                    const Places its = *(const Places*)(place + u);
                    Unit product;
#pragma unroll
                    for (int e = 0; e < UNIT; e++) product.of[e] = value.of[e] * xs[its.of[e]];
                    if (ended)
                        *(Unit*)(staged + u) = product;
                    else
#pragma unroll
                        for (int e = 0; e < UNIT; e++)
                            if (u + e >= at && u + e < till) sum += product.of[e];
                }
            }
            if (!ended) {  // a piece of one long row: nothing to write but what is carried on
                for (int by = 16; by; by >>= 1) sum += __shfl_down_sync(FULL, sum, by);
                if (lane == 0) open[t] = sum;
                __syncwarp();
                continue;
            }
            __syncwarp();
            if (count < 32 * ITEMS) {  // the last tile: nothing lies behind its end
                for (int i = till + lane; i < STAGE; i += 32) staged[i] = 0;
                __syncwarp();
            }
            const unsigned* its = bits_at + t * ITEMS + (lane * ITEMS >> 5);
            const unsigned mine = __funnelshift_r(its[0], its[1], lane * ITEMS & 31) & ((1u << ITEMS) - 1);
            const VALUE left = rows_of_tile(staged, at, mine, lane);
            if (lane == 31) open[t] = left;
            if (lane == 0) closed[t] = staged[0];
            for (int r = lane; r < ended; r += 32)
                if (r) y[first + r] = staged[r];
            __syncwarp();
        }
    }
    __syncthreads();
    finish(p - gridDim.x, turn + 2);
}
