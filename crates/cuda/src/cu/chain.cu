// The chain of partial gradients: additions to the part of a gradient that a rank owns. Sources may be on another card.

/// Maximum parts of a launch of `fold`.
#define PARTS_MAX 8

/// dst = the sum of the parts, or dst += each when `add`, in order, rounded as if each were added alone. Four elements
/// a thread; every part is loaded before the first addition.
template <class X, class T>
__device__ __forceinline__ void fold(const X* const (&parts)[PARTS_MAX], u32 count, T* __restrict__ dst, u64 n, u32 wide,
                                     u32 add) {
    u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (wide && i + 4 <= n) {
        float x[PARTS_MAX][4], sum[4] = {};
#pragma unroll
        for (u32 k = 0; k < PARTS_MAX; k++) {
            if (k < count) load4(parts[k] + i, x[k]);
        }
        if (add) load4(dst + i, sum);
#pragma unroll
        for (u32 k = 0; k < PARTS_MAX; k++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (k < count) sum[j] = to_f32(from_f32<T>(k > 0 || add ? sum[j] + x[k][j] : x[k][j]));
            }
        }
        return store4(dst + i, sum);
    }
    for (u64 end = i + 4 < n ? i + 4 : n; i < end; i++) {
        float sum = add ? to_f32(dst[i]) : 0.0f;
#pragma unroll
        for (u32 k = 0; k < PARTS_MAX; k++) {
            if (k < count) sum = to_f32(from_f32<T>(k > 0 || add ? sum + to_f32(parts[k][i]) : to_f32(parts[k][i])));
        }
        dst[i] = from_f32<T>(sum);
    }
}

#define FOLD(X, T)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        fold_##X##_##T(const X* a, const X* b, const X* c, const X* d, const X* e, const X* f, const X* g,           \
                       const X* h, u32 count, T* dst, u64 n, u32 wide, u32 add) {                                    \
        begin();                                                                                                     \
        const X* const parts[PARTS_MAX] = {a, b, c, d, e, f, g, h};                                                  \
        fold<X, T>(parts, count, dst, n, wide, add);                                                                 \
    }
FOLD(float, float)
FOLD(float, bf16)
FOLD(bf16, float)
FOLD(bf16, bf16)

/// Neighbouring elements of a gradient, and where a shard holds them.
struct Owned {
    u64 start, end, at;
};

/// The last of `owned`, which ascend, that begins at or before an element; `len` if none does.
__device__ __forceinline__ u32 owner_of(const Owned* __restrict__ owned, u32 len, u64 element) {
    u32 low = 0, high = len;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (owned[middle].start <= element) low = middle + 1;
        else high = middle;
    }
    return low == 0 ? len : low - 1;
}

/// Columns of a block of `add_owned_rows`: a warp with four each.
#define ADD_COLUMNS 128
/// Rows whose loads are under way at once: they may come from another card.
#define ADD_UNROLL 8

/// shard[of (target, column)] += the f32 sum of the target's rows of `src`, ascending, for the elements in `owned`,
/// whose runs begin and end at multiples of four. `order` and `runs` are from `order_rows`. grid: (rows, columns /
/// ADD_COLUMNS), a warp a block; `wide`: rows are whole groups of four at aligned addresses.
template <class T>
__device__ __forceinline__ void add_owned_rows(const float* __restrict__ src, const u32* __restrict__ targets,
                                               const u32* __restrict__ order, const u32* __restrict__ runs,
                                               const Owned* __restrict__ owned, u32 len, T* shard, u32 h, u32 wide) {
    u32 run = runs[blockIdx.x], first = blockIdx.y * ADD_COLUMNS + threadIdx.x * (wide ? 4 : 1);
    if (run == 0) return;
    const u32* rows = order + blockIdx.x;
    u64 row = (u64)targets[rows[0]] * h;
    if (wide) {
        if (first >= h) return;
        u32 of = owner_of(owned, len, row + first);
        if (of == len || row + first >= owned[of].end) return;
        T* to = shard + owned[of].at + (row + first - owned[of].start);
        float sum[4], old[4];
        load4(src + (u64)rows[0] * h + first, sum);
        u32 i = 1;
        for (; i + ADD_UNROLL <= run; i += ADD_UNROLL) {
            float x[ADD_UNROLL][4];
#pragma unroll
            for (int k = 0; k < ADD_UNROLL; k++) load4(src + (u64)rows[i + k] * h + first, x[k]);
#pragma unroll
            for (int k = 0; k < ADD_UNROLL; k++) {
#pragma unroll
                for (int j = 0; j < 4; j++) sum[j] = sum[j] + x[k][j];
            }
        }
        for (; i < run; i++) {
            float x[4];
            load4(src + (u64)rows[i] * h + first, x);
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] = sum[j] + x[j];
        }
        load4(to, old);
#pragma unroll
        for (int j = 0; j < 4; j++) sum[j] = old[j] + sum[j];
        return store4(to, sum);
    }
    u32 end = (blockIdx.y + 1) * ADD_COLUMNS;
    for (u32 c = first; c < h && c < end; c += WARP) {
        u32 of = owner_of(owned, len, row + c);
        if (of == len || row + c >= owned[of].end) continue;
        T* to = shard + owned[of].at + (row + c - owned[of].start);
        float sum = src[(u64)rows[0] * h + c];
        for (u32 i = 1; i < run; i++) sum = sum + src[(u64)rows[i] * h + c];
        *to = from_f32<T>(to_f32(*to) + sum);
    }
}

#define ADD_OWNED_ROWS(T)                                                                                            \
    extern "C" __global__ void __launch_bounds__(WARP)                                                               \
        add_owned_rows_##T(const float* src, const u32* targets, const u32* order, const u32* runs,                  \
                           const Owned* owned, u32 len, T* shard, u32 h, u32 wide) {                                 \
        begin();                                                                                                     \
        add_owned_rows<T>(src, targets, order, runs, owned, len, shard, h, wide);                                    \
    }
ADD_OWNED_ROWS(float)
ADD_OWNED_ROWS(bf16)
