// CUDA kernels on a processor, for tests on machines without a GPU: the same source, one thread after the other.
//
// Every CUDA thread of a block is a fibre; a barrier, a vote or a shuffle lets the others come as far. Blocks run in
// turn. What a kernel may use is what stands here: one-dimensional grids, whole warps in votes and shuffles.
#pragma once
#define ASSAY_ON_CPU 1
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#define __restrict__
#define __launch_bounds__(...)

using std::max;
using std::min;
struct Place { unsigned x, y, z; };
struct uint4 { unsigned x, y, z, w; };
static Place threadIdx, blockIdx, blockDim, gridDim;

namespace cpu {
struct Fibre { ucontext_t context; std::vector<char> stack; bool ended; unsigned long waits[2]; };
static std::vector<Fibre> fibres;
static ucontext_t home;
static unsigned now;
static std::function<void()> body;
struct Meeting { unsigned arrived; unsigned long turn; };
static std::vector<Meeting> warps;
static Meeting block;
static std::vector<std::uint64_t> slots;  // two a thread: the next exchange must not overwrite what others still read

inline unsigned members(unsigned from, unsigned to)
{
    unsigned alive = 0;
    for (unsigned i = from; i < to && i < fibres.size(); i++) alive += !fibres[i].ended;
    return alive;
}
inline void yield() { swapcontext(&fibres[now].context, &home); }
inline void meet(Meeting& meeting, unsigned from, unsigned to)
{
    const unsigned long turn = meeting.turn;
    meeting.arrived++;
    while (meeting.turn == turn) {
        if (meeting.arrived >= members(from, to)) { meeting.arrived = 0; meeting.turn++; break; }
        yield();
    }
}
inline unsigned warp_begin() { return now / 32 * 32; }
inline unsigned long warp_turn() { return warps[now / 32].turn; }
inline void meet_warp() { meet(warps[now / 32], warp_begin(), warp_begin() + 32); }
template <class T> const std::uint64_t* exchange(T value)
{
    std::uint64_t* half = slots.data() + (warp_turn() & 1) * fibres.size();
    std::uint64_t raw = 0;
    std::memcpy(&raw, &value, sizeof value);
    half[now] = raw;
    meet_warp();
    return half + warp_begin();
}
template <class T> T taken(const std::uint64_t* from, unsigned lane)
{
    T value;
    std::memcpy(&value, from + lane, sizeof value);
    return value;
}
inline void run_fibre()
{
    body();
    fibres[now].ended = true;
    swapcontext(&fibres[now].context, &home);
}
inline void launch(unsigned grid, unsigned threads, std::function<void()> kernel)
{
    body = kernel;
    gridDim = {grid, 1, 1};
    blockDim = {threads, 1, 1};
    fibres.resize(threads);
    for (auto& fibre : fibres) fibre.stack.resize(1 << 16);
    slots.assign(2 * threads, 0);
    for (unsigned b = 0; b < grid; b++) {
        blockIdx = {b, 0, 0};
        warps.assign((threads + 31) / 32, Meeting{0, 0});
        block = {0, 0};
        for (auto& fibre : fibres) {
            getcontext(&fibre.context);
            fibre.context.uc_stack.ss_sp = fibre.stack.data();
            fibre.context.uc_stack.ss_size = fibre.stack.size();
            fibre.context.uc_link = &home;
            fibre.ended = false;
            makecontext(&fibre.context, run_fibre, 0);
        }
        for (bool alive = true; alive;) {
            alive = false;
            for (now = 0; now < threads; now++) {
                if (fibres[now].ended) continue;
                alive = true;
                threadIdx = {now, 0, 0};
                swapcontext(&home, &fibres[now].context);
            }
        }
    }
}
}  // namespace cpu

// A fibre that goes on must find its own thread's number again: the launcher sets it before each turn.
inline void __syncthreads() { cpu::meet(cpu::block, 0, (unsigned)cpu::fibres.size()); }
inline void __syncwarp(unsigned = ~0u) { cpu::meet_warp(); }
inline unsigned lane_of_now() { return cpu::now % 32; }
template <class T> T __shfl_sync(unsigned, T value, int lane, int = 32) { return cpu::taken<T>(cpu::exchange(value), lane); }
template <class T> T __shfl_up_sync(unsigned, T value, int by, int width = 32)
{
    auto all = cpu::exchange(value);
    unsigned lane = lane_of_now();
    return (int)(lane % width) >= by ? cpu::taken<T>(all, lane - by) : value;
}
template <class T> T __shfl_down_sync(unsigned, T value, int by, int width = 32)
{
    auto all = cpu::exchange(value);
    unsigned lane = lane_of_now();
    return (int)(lane % width) + by < width ? cpu::taken<T>(all, lane + by) : value;
}
template <class T> T __shfl_xor_sync(unsigned, T value, int by) { return cpu::taken<T>(cpu::exchange(value), lane_of_now() ^ by); }
inline unsigned __ballot_sync(unsigned, int yes)
{
    auto all = cpu::exchange<int>(yes != 0);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; lane++) votes |= (unsigned)cpu::taken<int>(all, lane) << lane;
    return votes;
}
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) == ~0u; }
inline unsigned __reduce_add_sync(unsigned, unsigned value)
{
    auto all = cpu::exchange(value);
    unsigned sum = 0;
    for (unsigned lane = 0; lane < 32; lane++) sum += cpu::taken<unsigned>(all, lane);
    return sum;
}
inline unsigned __reduce_min_sync(unsigned, unsigned value)
{
    auto all = cpu::exchange(value);
    for (unsigned lane = 0; lane < 32; lane++) value = min(value, cpu::taken<unsigned>(all, lane));
    return value;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value)
{
    auto all = cpu::exchange(value);
    for (unsigned lane = 0; lane < 32; lane++) value = max(value, cpu::taken<unsigned>(all, lane));
    return value;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by)
{
    return (unsigned)(((std::uint64_t)high << 32 | low) >> (by & 31));
}
inline float __fadd_rn(float a, float b) { return a + b; }  // compiled with -ffp-contract=off
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
template <class T> T __ldg(const T* at) { return *at; }
template <class T> T __ldcs(const T* at) { return *at; }
template <class T, class U> T atomicAdd(T* at, U by) { T old = *at; *at += by; return old; }
template <class T, class U> T atomicOr(T* at, U by) { T old = *at; *at |= by; return old; }
template <class T, class U> T atomicMin(T* at, U by) { T old = *at; *at = std::min<T>(old, by); return old; }
template <class T, class U> T atomicMax(T* at, U by) { T old = *at; *at = std::max<T>(old, by); return old; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which)
{
    const std::uint64_t both = (std::uint64_t)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}

// Numbers of 16 bits, two a word, as tensor cores and packed instructions take them.
namespace cpu {
inline float single(unsigned half)  // from half precision
{
    const int exponent = half >> 10 & 31, last = half & 0x3ff;
    const float size = exponent ? std::ldexp(float(1024 + last), exponent - 25) : std::ldexp(float(last), -24);
    return half & 0x8000 ? -size : size;
}
inline unsigned half(float x)  // to the nearest, ties to even; beyond its range infinity
{
    const float size = std::fabs(x);
    const unsigned sign = std::signbit(x) ? 0x8000 : 0;
    if (!(size < 65520.0f)) return sign | 0x7c00;
    if (size == 0) return sign;
    int exponent = 0;
    std::frexp(size, &exponent);
    const int by = std::max(exponent - 11, -24);  // of its last bit
    const unsigned last = (unsigned)std::nearbyint(std::ldexp(size, -by));  // its highest bit goes into the exponent
    return sign | (((unsigned)(by + 24) << 10) + last);
}
inline float upper(unsigned x) { return __uint_as_float(x & 0xffff0000u); }
}  // namespace cpu
inline unsigned halves(float low, float high) { return cpu::half(low) | cpu::half(high) << 16; }
inline unsigned multiplied_added(unsigned a, unsigned b, unsigned c)
{
    auto at = [&](int by) {
        return cpu::single(a >> by & 0xffff) * cpu::single(b >> by & 0xffff) + cpu::single(c >> by & 0xffff);
    };
    return halves(at(0), at(16));
}
inline unsigned multiplied(unsigned a, unsigned b) { return multiplied_added(a, b, 0x80008000u); }

// mma.m16n8k16: lane 4 i + j has rows i and i + 8 of `a` and `d`, column i of `b`, and of those the pairs j and j + 4.
template <bool bfloat>
void cpu_product(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1)
{
    unsigned a[4][32], b[2][32], mine[] = {a0, a1, a2, a3, b0, b1};
    for (int i = 0; i < 6; i++) {
        auto all = cpu::exchange(mine[i]);
        for (unsigned lane = 0; lane < 32; lane++) (i < 4 ? a[i] : b[i - 4])[lane] = cpu::taken<unsigned>(all, lane);
    }
    auto of = [](unsigned word, int k) {
        if (bfloat) return cpu::upper(k & 1 ? word : word << 16);
        return cpu::single(k & 1 ? word >> 16 : word & 0xffff);
    };
    for (int i = 0; i < 4; i++) {
        const unsigned row = lane_of_now() / 4, column = lane_of_now() % 4 * 2 + (i & 1);
        for (int k = 0; k < 16; k++)
            d[i] += of(a[(k >> 3) * 2 + (i >> 1)][row * 4 + k % 8 / 2], k) * of(b[k >> 3][column * 4 + k % 8 / 2], k);
    }
}
