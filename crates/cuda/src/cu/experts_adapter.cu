// Adapters of experts in bf16 on tensor cores: narrow and shallow products of columns of pairs' rows. Rows are aligned.
// Sums: see experts_tile.cuh; a pair's bits depend on nothing else.

/// Columns of an operand's rows for pairs: elements from row to row, and the pairs of a row, or 0 for one.
struct Rows {
    const bf16* x;
    u32 stride, chosen;
};

/// Where the sums of pairs go: columns of rows, and what is done to a sum first.
template <class T> struct Target {
    T* out;
    u32 stride;
    float scale;
    u32 add;
};

/// Few outputs of many depths: every depth of a row is read once.
typedef Shape<64, 32, 4, 1, 5> Narrow32;
typedef Shape<64, 64, 4, 1, 4> Narrow64;
/// Many outputs of few depths: every output is written once.
typedef Shape<64, 128, 2, 4, 2> Shallow;

__device__ __forceinline__ void load_eight(const bf16* p, float (&x)[8]) {
    const uint4 y = *(const uint4*)p;
    const u32 words[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) x[2 * i] = low_f32(words[i]), x[2 * i + 1] = high_f32(words[i]);
}
__device__ __forceinline__ void load_eight(const float* p, float (&x)[8]) {
    const float4 a = *(const float4*)p, b = *(const float4*)(p + 4);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ __forceinline__ void store_eight(bf16* p, const float (&x)[8]) {
    *(uint4*)p = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}
__device__ __forceinline__ void store_eight(float* p, const float (&x)[8]) {
    *(float4*)p = make_float4(x[0], x[1], x[2], x[3]);
    *(float4*)(p + 4) = make_float4(x[4], x[5], x[6], x[7]);
}

/// Stores a tile's sums through shared memory, eight neighbours a thread.
template <class S, class T>
__device__ __forceinline__ void store_rows(float* shared, const Sums<S>& sums, const Target<T>& to, const Tile& tile, u32 first, u32 J) {
    constexpr u32 ROW = S::COLS + 4, PIECES = S::COLS / 8, STEP = S::THREADS / PIECES, EACH = S::ROWS / STEP;
    const u32 col = threadIdx.x % PIECES * 8, mine = threadIdx.x / PIECES;
    T* out = to.out + (u64)(tile.first + mine) * to.stride + first + col;
    auto load = [&](u32 i, float (&was)[8]) {
        if (to.add && first + col < J && mine + i * STEP < tile.rows) load_eight(out + (u64)i * STEP * to.stride, was);
    };
    // All of bf16 that is added to is under way at once; of f32 it would take too many registers.
    constexpr bool AHEAD = sizeof(T) == 2;
    float all[AHEAD ? EACH : 1][8] = {};
    if constexpr (AHEAD)
#pragma unroll
        for (u32 i = 0; i < EACH; i++) load(i, all[i]);
    // All have left the stages, whose memory this is.
    __syncthreads();
    sums.each(tile.rows, [&](u32 line, u32 col, float a, float b) { *(float2*)(shared + line * ROW + col) = make_float2(a, b); });
    __syncthreads();
    if (first + col >= J) return;
#pragma unroll(AHEAD ? EACH : 1)
    for (u32 i = 0; i < EACH; i++) {
        if (mine + i * STEP >= tile.rows) return;
        float x[8];
        float(&was)[8] = all[AHEAD ? i : 0];
        if constexpr (!AHEAD) load(i, was);
        load_eight(shared + (mine + i * STEP) * ROW + col, x);
#pragma unroll
        for (u32 j = 0; j < 8; j++) x[j] = to.add ? was[j] + to.scale * x[j] : to.scale * x[j];
        store_eight(out + (u64)i * STEP * to.stride, x);
    }
}

/// out = scale x W^T of weights [J, L], or BACKWARD scale x W of weights [L, J]; or out +=, the sum rounded once.
/// `each`: elements from one expert's weights to the next.
template <class S, bool BACKWARD, class T>
__device__ __forceinline__ void product(const Rows& x, const bf16* __restrict__ w, u64 each, const u32* __restrict__ pairs,
                                        const u32* __restrict__ starts, const Target<T>& to, u32 experts, u32 J, u32 L) {
    extern __shared__ __align__(128) u8 dynamic_shared[];
    const Tile tile = find_tile<S::ROWS>(starts, experts, blockIdx.x);
    if (tile.rows == 0) return;
    const u32 first = blockIdx.y * S::COLS;
    const bf16* own = w + tile.expert * each;
    const Lines<S::ROWS, S::THREADS, true> left(x.x, L, tile.rows, [&](u32 line) { return row_of(pairs, tile.first + line, x.chosen); }, x.stride);
    Sums<S> sums = {};
    multiply<BACKWARD>(dynamic_shared, left, own, tile.rows, first, J, L, sums);
    store_rows((float*)dynamic_shared, sums, to, tile, first, J);
}

#define PRODUCT(NAME, SHAPE, BACKWARD, T, type)                                                                                    \
    extern "C" __global__ void __launch_bounds__(SHAPE::THREADS)                                                                   \
    NAME##_##type(const bf16* x, u32 x_stride, u32 chosen, const bf16* w, u64 each, const u32* pairs, const u32* starts, T* out,   \
                  u32 stride, u32 experts, u32 n, u32 k, float scale, u32 add) {                                                   \
        begin();                                                                                                                   \
        product<SHAPE, BACKWARD>(Rows{x, x_stride, chosen}, w, each, pairs, starts, Target<T>{out, stride, scale, add}, experts,   \
                                 BACKWARD ? k : n, BACKWARD ? n : k);                                                              \
    }
#define PRODUCTS(T, type)                                                                                                          \
    PRODUCT(adapt_32, Narrow32, false, T, type)                                                                                    \
    PRODUCT(adapt_64, Narrow64, false, T, type)                                                                                    \
    PRODUCT(adapt_128, Shallow, false, T, type)                                                                                    \
    PRODUCT(adapt_dx_64, Narrow64, true, T, type)                                                                                  \
    PRODUCT(adapt_dx_128, Shallow, true, T, type)
PRODUCTS(bf16, bf16)
PRODUCTS(float, float)

/// Of a gradient: B's has many rows and few columns, A's few rows and many columns.
typedef Shape<128, 64, 4, 2, 3> Tall;
typedef Shape<64, 128, 2, 4, 3> Broad;

/// grad = dy^T x over an expert's pairs, or grad +=, the product rounded first. `each`: elements from one expert's
/// gradient to the next.
template <class S, class T>
__device__ __forceinline__ void gradient(const Rows& dy, const Rows& x, const u32* __restrict__ pairs, const u32* __restrict__ starts,
                                         T* __restrict__ grad, u64 each, u32 n, u32 k, u32 add) {
    extern __shared__ __align__(128) u8 dynamic_shared[];
    const u32 col_tiles = tiles_of(k, S::COLS), i = blockIdx.x / col_tiles * S::ROWS, j = blockIdx.x % col_tiles * S::COLS;
    const u32 first = starts[blockIdx.y], end = starts[blockIdx.y + 1], length = end - first;
    if (length == 0 && add) return;
    const Depths<S::ROWS, S::THREADS, true> left(dy.x, n, i, dy.stride);
    const Depths<S::COLS, S::THREADS, true> right(x.x, k, j, x.stride);
    // Rows are found a step before they are copied.
    u32 left_rows[left.EACH], right_rows[right.EACH];
    const auto find = [&](u32 depth) {
        find_rows<S::THREADS>(left_rows, pairs, first + depth, end, dy.chosen);
        find_rows<S::THREADS>(right_rows, pairs, first + depth, end, x.chosen);
    };
    find(0);
    Sums<S> sums = {};
    run_stages<S::STAGES, S::STAGE_BYTES>(
        dynamic_shared, length,
        [&](u8* stage, u32 depth) {
            left.fill(stage, left_rows, length - depth);
            right.fill(stage + S::ROWS * 128, right_rows, length - depth);
            find(depth + DEPTH);
        },
        [&](const u8* stage, u32 depth) { sums.template add<false, false>(stage, steps_from(depth, length), n - i); });
    T* own = grad + blockIdx.y * each;
    sums.each(n - i, [&](u32 line, u32 col, float a, float b) {
        if (j + col >= k) return;
        store_gradient(own + (u64)(i + line) * k + j + col, a, b, add);
    });
}

#define GRADIENT(NAME, SHAPE, T, type)                                                                                             \
    extern "C" __global__ void __launch_bounds__(SHAPE::THREADS)                                                                   \
    NAME##_##type(const bf16* dy, u32 dy_stride, u32 dy_chosen, const bf16* x, u32 x_stride, u32 x_chosen, const u32* pairs,       \
                  const u32* starts, T* grad, u64 each, u32 n, u32 k, u32 add) {                                                   \
        begin();                                                                                                                   \
        gradient<SHAPE>(Rows{dy, dy_stride, dy_chosen}, Rows{x, x_stride, x_chosen}, pairs, starts, grad, each, n, k, add);        \
    }
GRADIENT(adapt_dw_tall, Tall, bf16, bf16)
GRADIENT(adapt_dw_tall, Tall, float, float)
GRADIENT(adapt_dw_broad, Broad, bf16, bf16)
GRADIENT(adapt_dw_broad, Broad, float, float)
