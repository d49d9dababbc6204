// MLA decode with tokens as the rows of WGMMA's tiles, by hand: what `gpu.transposed` says in Triton, for Hopper alone.
//
// Compiled by NVRTC for sm_90a. One block of threads a worker: a warp group copies, one multiplies. A tile has 64 tokens;
// it comes in thirds of 192 entries, and as many thirds as fit into shared memory are on their way. In shared memory 64
// entries of a token lie side by side (128 bytes, in the order that WGMMA's 128-byte swizzle wants); the same copy is K,
// read along the entries, and V, read along the tokens. Heads (16, the missing ones zeros) are the columns.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#define NOTHING __int_as_float(0xff800000)  // minus infinity
#define TOKENS 64
#define WIDTH 576
#define LATENT 512
#define HEADS 16
#define SLOTS 8
#define PANEL 8192              // bytes of 64 entries of a tile
#define THIRD (3 * PANEL)
#define PART (HEADS * 128)      // bytes of 64 entries of the queries
#define QUERIES (SLOTS * THIRD)
#define WEIGHTS (QUERIES + 9 * PART)
#define HIGHEST (WEIGHTS + PART)
#define BARRIERS (HIGHEST + 4 * HEADS * 4)

__device__ __forceinline__ void begin_barrier(u32 at, u32 count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count));
}

__device__ __forceinline__ void wait_for(u32 at, u32 parity)
{
    u32 done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(at), "r"(parity) : "memory");
    } while (!done);
}

__device__ __forceinline__ void arrive(u32 at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

__device__ __forceinline__ void multipliers_meet() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

// What ordinary stores and copies have written, tensor cores may read from now on.
__device__ __forceinline__ void show() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A tile in shared memory as WGMMA wants it named: groups of eight rows 1,024 bytes apart, swizzled over 128 bytes.
__device__ __forceinline__ u64 named(u32 at) { return (u64)(1u << 30 | 64u) << 32 | (1u << 16) | (at >> 4); }

// d (+)= A B for 64 rows and 16 columns. TURNED: A lies with its rows side by side.
template <int TURNED>
__device__ __forceinline__ void multiply(float (&d)[8], u64 a, u64 b, int add)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, "
                 "%11, 0; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "l"(a), "l"(b), "r"(add), "n"(TURNED));
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_sent() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int LATER>  // all but so many groups of products are done
__device__ __forceinline__ void products_done()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
}

__device__ __forceinline__ float power(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ u16 half_of(float x)
{
    u16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

// Four warps copy a worker's tiles, third after third, as slots become free.
__device__ __forceinline__ void copy(const char* cache, const int* table, const int* lengths, const int* pieces,
                                     int piece, int end, int stride, int page_tokens, u32 shared)
{
    const int thread = threadIdx.x & 127, lane = threadIdx.x & 31, row = thread >> 3, part = thread & 7;
    const u32 to = shared + row * 128 + ((part ^ (row & 7)) << 4);
    const char* const from = cache + (row * WIDTH + part * 8) * 2;
    u32 third = 0;
    for (; piece < end; piece++) {
        const int sequence = pieces[3 * piece], first = pieces[3 * piece + 1], last = pieces[3 * piece + 2];
        const int length = lengths[sequence], each = page_tokens / TOKENS;
        const int* pages = table + (long long)sequence * stride;
        int page = 0;
        for (int tile = first; tile < last; tile++) {
            if (((tile - first) & 31) == 0) page = tile + lane < last ? pages[(tile + lane) / each] : 0;
            const int mine = __shfl_sync(~0u, page, (tile - first) & 31), live = length - tile * TOKENS - row;
            const char* source = from + ((long long)mine * page_tokens + tile % each * TOKENS) * (WIDTH * 2);
#pragma unroll
            for (int t = 0; t < 3; t++, third++) {
                const u32 slot = third % SLOTS, barrier = shared + BARRIERS + slot * 8;
                wait_for(barrier + SLOTS * 8, (third / SLOTS & 1) ^ 1);
#pragma unroll
                for (int k = 0; k < 12; k++) {  // rows 16 apart; tokens past the end come as zeros, and are not read
                    const int down = k & 3, panel = k >> 2;
                    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::
                                 "r"(to + slot * THIRD + panel * PANEL + down * 2048),
                                 "l"(source + (t * 3 + panel) * 128 + down * (16 * WIDTH * 2)),
                                 "r"(down * 16 < live ? 16 : 0) : "memory");
                }
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
            }
        }
    }
}

// Queries of a sequence into shared memory, zeros for heads that are only there to fill the tile.
__device__ __forceinline__ void place_queries(const char* query, int heads, char* memory)
{
#pragma unroll
    for (int k = 0; k < 9; k++) {
        const int head = threadIdx.x >> 3, part = threadIdx.x & 7;
        uint4 some = make_uint4(0, 0, 0, 0);
        if (head < heads) some = *(const uint4*)(query + (head * WIDTH + k * 64 + part * 8) * 2);
        *(uint4*)(memory + QUERIES + k * PART + head * 128 + ((part ^ (head & 7)) << 4)) = some;
    }
}

// Of a thread's four columns, by the four warps, the sum or the greatest.
template <int SUM>
__device__ __forceinline__ void over_rows(float (&x)[4], float* between)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int by = 4; by < 32; by <<= 1) {
            const float other = __shfl_xor_sync(~0u, x[c], by);
            x[c] = SUM ? x[c] + other : fmaxf(x[c], other);
        }
    if (lane < 4)
#pragma unroll
        for (int c = 0; c < 4; c++) between[warp * HEADS + (c >> 1) * 8 + lane * 2 + (c & 1)] = x[c];
    multipliers_meet();
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float* column = between + (c >> 1) * 8 + (lane & 3) * 2 + (c & 1);
        x[c] = column[0];
#pragma unroll
        for (int w = 1; w < 4; w++) x[c] = SUM ? x[c] + column[w * HEADS] : fmaxf(x[c], column[w * HEADS]);
    }
}

// The shares of a tile's tokens so far, in half precision, and by how much what was before them fades. `live` tokens from
// this thread's first on are real.
__device__ __forceinline__ void weigh(float (&score)[8], float (&top)[4], float (&total)[4], float (&fade)[4], float scale,
                                      int live, char* memory)
{
    const int lane = threadIdx.x & 31, row = (threadIdx.x >> 5) * 16 + (lane >> 2);
    float* between = (float*)(memory + HIGHEST);
    float high[4];
#pragma unroll
    for (int i = 0; i < 8; i++) score[i] = (i >> 1 & 1) * 8 < live ? score[i] * scale : NOTHING;
#pragma unroll
    for (int c = 0; c < 4; c++) high[c] = fmaxf(score[(c >> 1) * 4 + (c & 1)], score[(c >> 1) * 4 + (c & 1) + 2]);
    over_rows<0>(high, between);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        high[c] = fmaxf(high[c], top[c]);
        fade[c] = power(top[c] - high[c]);
        top[c] = high[c];
        total[c] *= fade[c];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = (i >> 2) * 2 + (i & 1), head = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
        const int token = row + (i >> 1 & 1) * 8;
        const float share = power(score[i] - top[c]);
        total[c] += share;
        const int place = head * 128 + (((token >> 3) ^ (head & 7)) << 4) + (token & 7) * 2;
        *(u16*)(memory + WEIGHTS + place) = half_of(share);
    }
}

// A piece's sums over its weights, and the logarithm of those.
__device__ __forceinline__ void put(const float (&out)[8][8], const float (&top)[4], float (&total)[4], float* partial,
                                    float* weight, int heads, float* between)
{
    const int lane = threadIdx.x & 31, row = (threadIdx.x >> 5) * 16 + (lane >> 2);
    multipliers_meet();  // all have read what lies between
    over_rows<1>(total, between);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = (i >> 2) * 2 + (i & 1), head = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
        const float by = 1 / total[c];
        if (head < heads) {
            float* place = partial + head * LATENT + row + (i >> 1 & 1) * 8;
#pragma unroll
            for (int m = 0; m < 8; m++) place[m * 64] = out[m][i] * by;
            if (row == 0 && !(i >> 1 & 1)) weight[head] = top[c] + log2f(total[c]);
        }
    }
}

// Four warps multiply: scores of a tile (tokens by heads), their softmax so far, sums of latents (entries by heads).
__device__ __forceinline__ void decode(const char* query, const int* lengths, const int* pieces, int piece, int end,
                                       float* partial, float* weight, float scale, int heads, char* memory, u32 shared)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = warp * 16 + (lane >> 2);
    u32 third = 0;
    for (; piece < end; piece++) {
        const int sequence = pieces[3 * piece], first = pieces[3 * piece + 1], last = pieces[3 * piece + 2];
        const int length = lengths[sequence];
        place_queries(query + (long long)sequence * heads * (WIDTH * 2), heads, memory);
        show();
        multipliers_meet();
        float out[8][8], top[4], total[4];
#pragma unroll
        for (int m = 0; m < 8; m++)
#pragma unroll
            for (int i = 0; i < 8; i++) out[m][i] = 0;
#pragma unroll
        for (int c = 0; c < 4; c++) top[c] = NOTHING, total[c] = 0;
        for (int tile = first; tile < last; tile++) {
            float score[8];
            u32 at[3], slot[3];
#pragma unroll
            for (int t = 0; t < 3; t++, third++) {
                slot[t] = third % SLOTS, at[t] = shared + slot[t] * THIRD;
                wait_for(shared + BARRIERS + slot[t] * 8, third / SLOTS & 1);
                show();
                products_begin();
#pragma unroll
                for (int k = 0; k < 12; k++)
                    multiply<0>(score, named(at[t] + (k >> 2) * PANEL + (k & 3) * 32),
                                named(shared + QUERIES + (t * 3 + (k >> 2)) * PART + (k & 3) * 32), t + k);
                products_sent();
            }
            products_done<0>();
            float fade[4];
            weigh(score, top, total, fade, scale, length - tile * TOKENS - row, memory);
            if (__any_sync(~0u, fade[0] != 1 || fade[1] != 1 || fade[2] != 1 || fade[3] != 1))
#pragma unroll
                for (int m = 0; m < 8; m++)
#pragma unroll
                    for (int i = 0; i < 8; i++) out[m][i] *= fade[(i >> 2) * 2 + (i & 1)];
            show();
            multipliers_meet();
            products_begin();
#pragma unroll
            for (int t = 0; t < 3; t++) {
#pragma unroll
                for (int m = 3 * t; m < min(3 * t + 3, 8); m++)
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        multiply<1>(out[m], named(at[t] + m % 3 * PANEL + k * 2048), named(shared + WEIGHTS + k * 32), 1);
                products_sent();
            }
            products_done<2>();  // thirds are free one after the other
            if (lane == 0) arrive(shared + BARRIERS + (SLOTS + slot[0]) * 8);
            products_done<1>();
            if (lane == 0) arrive(shared + BARRIERS + (SLOTS + slot[1]) * 8);
            products_done<0>();
            if (lane == 0) arrive(shared + BARRIERS + (SLOTS + slot[2]) * 8);
        }
        put(out, top, total, partial + (long long)piece * heads * LATENT, weight + piece * heads, heads,
            (float*)(memory + HIGHEST));
        multipliers_meet();  // nobody reads the old queries or sums any more
    }
}

extern "C" __global__ void __launch_bounds__(256, 1)
turned(const char* query, const char* cache, const int* table, const int* lengths, const int* workers, const int* pieces,
       float* partial, float* weight, float scale, int stride, int heads, int page_tokens)
{
    extern __shared__ __align__(1024) char memory[];
    const u32 shared = (u32)__cvta_generic_to_shared(memory);
    const int piece = workers[blockIdx.x], end = workers[blockIdx.x + 1];
    if (threadIdx.x < 2 * SLOTS) begin_barrier(shared + BARRIERS + threadIdx.x * 8, threadIdx.x < SLOTS ? 128 : 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    if (threadIdx.x >= 128)
        copy(cache, table, lengths, pieces, piece, end, stride, page_tokens, shared);
    else
        decode(query, lengths, pieces, piece, end, partial, weight, scale, heads, memory, shared);
}
