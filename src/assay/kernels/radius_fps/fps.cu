// Farthest point sampling on a GPU, a block a cloud: RadiusFPS by spheres, QuickFPS's idea by boxes, and plainly.
//
// Compiled by NVRTC on a GPU, and by g++ over engine/cuda_on_cpu.h in tests. Distances are the rule's:
// (dx*dx + dy*dy) + dz*dz, each operation rounded by itself, ties to the smallest original index.

#define FULL 0xffffffffu
typedef unsigned long long u64;

__device__ __forceinline__ float distance(float x, float y, float z, float sx, float sy, float sz)
{
    const float dx = __fsub_rn(x, sx), dy = __fsub_rn(y, sy), dz = __fsub_rn(z, sz);
    return __fadd_rn(__fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy)), __fmul_rn(dz, dz));
}

// The farthest point, and of equal ones the first, is the largest key: distances are not negative, so their bits
// order as they do.
__device__ __forceinline__ u64 key_of(float d, int index) { return (u64)__float_as_uint(d) << 32 | (0xffffffffu - index); }
__device__ __forceinline__ float d_of(u64 key) { return __uint_as_float((unsigned)(key >> 32)); }
__device__ __forceinline__ int index_of(u64 key) { return (int)(0xffffffffu - (unsigned)key); }

__device__ __forceinline__ u64 largest_of_warp(u64 key)
{
    for (int by = 16; by; by >>= 1) {
        const u64 other = __shfl_xor_sync(FULL, key, by);
        key = other > key ? other : key;
    }
    return key;
}

__device__ u64 largest_of_block(u64 key, u64* slots)
{
    key = largest_of_warp(key);
    if ((threadIdx.x & 31) == 0) slots[threadIdx.x >> 5] = key;
    __syncthreads();
    const int warps = blockDim.x >> 5, lane = threadIdx.x & 31;
    key = largest_of_warp(lane < warps ? slots[lane] : 0);
    return key;
}

// Could a sample at s bring any point of the voxel closer? Widened beyond all rounding: a voxel too many costs time,
// one too few would cost exactness.
__device__ __forceinline__ bool in_reach(const float* bounds, int voxels, int v, float dmax, float sx, float sy, float sz)
{
#ifdef BOXES
    const float ax = fmaxf(fmaxf(bounds[v] - sx, sx - bounds[3 * voxels + v]), 0.0f);
    const float ay = fmaxf(fmaxf(bounds[voxels + v] - sy, sy - bounds[4 * voxels + v]), 0.0f);
    const float az = fmaxf(fmaxf(bounds[2 * voxels + v] - sz, sz - bounds[5 * voxels + v]), 0.0f);
    return (ax * ax + ay * ay + az * az) * 0.99999f < dmax;
#else
    const float ex = bounds[v] - sx, ey = bounds[voxels + v] - sy, ez = bounds[2 * voxels + v] - sz;
    const float reach = bounds[3 * voxels + v] + sqrtf(dmax);
    return (ex * ex + ey * ey + ez * ez) * 0.99999f <= reach * reach;
#endif
}

// x, y, z, d, index: points in the order of their voxels. start[v]: a voxel's first point. bounds: centres and radii
// (or lows and highs with -DBOXES), a row each. key, place: a voxel's farthest point. All of cloud b at its offset.
extern "C" __global__ void __launch_bounds__(1024) pruned(const float* x, const float* y, const float* z, float* d, const int* index,
                                  const int* start, const float* bounds, u64* key, int* place, int* list, int n,
                                  int voxels, int k, int first, int* out, u64* visited)
{
    __shared__ u64 slots[32];
    __shared__ int listed, chosen;
    const long long b = blockIdx.x;
    x += b * n; y += b * n; z += b * n; d += b * n; index += b * n; out += b * k;
    start += b * (voxels + 1); key += b * voxels; place += b * voxels; list += b * voxels;
#ifdef BOXES
    bounds += b * 6 * voxels;
#else
    bounds += b * 4 * voxels;
#endif
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    if (threadIdx.x == 0) { chosen = first; out[0] = index[first]; }
    for (int v = threadIdx.x; v < voxels; v += blockDim.x) key[v] = key_of(__uint_as_float(0x7f800000u), 0);  // infinity: all must be visited
    u64 touched = 0;
    for (int i = 1; i < k; i++) {
        if (threadIdx.x == 0) listed = 0;
        __syncthreads();
        const float sx = x[chosen], sy = y[chosen], sz = z[chosen];
        for (int v = threadIdx.x; v < voxels; v += blockDim.x)
            if (in_reach(bounds, voxels, v, d_of(key[v]), sx, sy, sz)) list[atomicAdd(&listed, 1)] = v;
        __syncthreads();
        for (int entry = warp; entry < listed; entry += warps) {
            const int v = list[entry];
            const int end = start[v + 1];
            u64 best = 0;
            int where = 0;
            for (int p = start[v] + lane; p < end; p += 32) {
                const float fresh = distance(x[p], y[p], z[p], sx, sy, sz);
                const float old = d[p];
                const float now = fresh < old ? fresh : old;
                if (fresh < old) d[p] = fresh;
                const u64 mine = key_of(now, index[p]);
                if (mine >= best) { best = mine; where = p; }
            }
            touched += lane == 0 ? end - start[v] : 0;
            const u64 largest = largest_of_warp(best);
            if (best == largest && end - start[v] > lane) place[v] = where;
            if (lane == 0) key[v] = largest;
        }
        __syncthreads();
        u64 best = 0;
        int where = 0;
        for (int v = threadIdx.x; v < voxels; v += blockDim.x)
            if (key[v] >= best) { best = key[v]; where = v; }
        const u64 largest = largest_of_block(best, slots);
        if (d_of(largest) <= 0) {  // what is left lies on samples: the host fills up in the order of indices
            if (threadIdx.x == 0) for (int j = i; j < k; j++) out[j] = -1;
            break;
        }
        if (best == largest) { chosen = place[where]; out[i] = index_of(largest); }
        __syncthreads();
    }
    if (visited && lane == 0) atomicAdd(visited, touched);
}

// A sample against every point, as PointNet++ and PyTorch3D have it: one block a cloud, the argmax in shared memory.
extern "C" __global__ void __launch_bounds__(1024) plain(const float* x, const float* y, const float* z, float* d, int n, int k, int first,
                                 int* out)
{
    __shared__ u64 slots[32];
    const long long b = blockIdx.x;
    x += b * n; y += b * n; z += b * n; d += b * n; out += b * k;
    int chosen = first;
    if (threadIdx.x == 0) out[0] = first;
    for (int i = 1; i < k; i++) {
        const float sx = x[chosen], sy = y[chosen], sz = z[chosen];
        u64 best = 0;
        for (int p = threadIdx.x; p < n; p += blockDim.x) {
            const float fresh = distance(x[p], y[p], z[p], sx, sy, sz);
            const float old = d[p];
            const float now = fresh < old ? fresh : old;
            if (fresh < old) d[p] = fresh;
            const u64 mine = key_of(now, p);
            best = mine > best ? mine : best;
        }
        const u64 largest = largest_of_block(best, slots);
        if (d_of(largest) <= 0) {
            if (threadIdx.x == 0) for (int j = i; j < k; j++) out[j] = -1;
            break;
        }
        chosen = index_of(largest);
        if (threadIdx.x == 0) out[i] = chosen;
        __syncthreads();
    }
}
