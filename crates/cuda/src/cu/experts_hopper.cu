// Products of experts with many pairs by Hopper's own instructions, in bf16: those of experts.cu and experts_dw.cu, in
// the same steps of 16 depths with the same bits: zeros after the last change none. On other cards the file is empty.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// The product of experts.cu.
template <u32 COLS, u32 STAGES, bool BACKWARD, class T>
__device__ __forceinline__ void product(const bf16* __restrict__ x, const bf16* __restrict__ w, T* __restrict__ out,
                                        const u32* __restrict__ pairs, const u32* __restrict__ starts, u32 experts, u32 chosen, u32 J,
                                        u32 L) {
    extern __shared__ __align__(128) u8 dynamic_shared[];
    const Tile tile = find_tile<ROWS>(starts, experts, blockIdx.x);
    if (tile.rows == 0) return;
    const u32 first = blockIdx.y * COLS;
    const bf16* own = w + (u64)tile.expert * J * L;
    const Lines<ROWS, 256, true> left(x, L, tile.rows, [&](u32 line) { return row_of(pairs, tile.first + line, chosen); });
    GroupSums<COLS> sums = {};
    if constexpr (BACKWARD) {
        const Depths<COLS, 256, true> right(own, J, first);
        const auto load = [&](u8* stage, u32 depth) {
            right.fill(stage + ROWS * 128, depth, L);
            left.fill(stage, depth);
        };
        run_products<STAGES, true, !BACKWARD>(aligned_shared(dynamic_shared), L, tile.rows, sums, load);
    } else {
        const Lines<COLS, 256, true> right(own, L, J - first, [&](u32 line) { return first + line; });
        const auto load = [&](u8* stage, u32 depth) {
            right.fill(stage + ROWS * 128, depth);
            left.fill(stage, depth);
        };
        run_products<STAGES, true, !BACKWARD>(aligned_shared(dynamic_shared), L, tile.rows, sums, load);
    }
    sums.each(tile.rows, [&](u32 line, u32 col, float a, float b) {
        if (first + col < J) store_two(out + (u64)(tile.first + line) * J + first + col, a, b);
    });
}

/// The gradient of experts_dw.cu.
template <u32 COLS, u32 STAGES, class T>
__device__ __forceinline__ void gradient(const bf16* __restrict__ dy, u32 dy_chosen, const bf16* __restrict__ x, u32 x_chosen,
                                         const u32* __restrict__ pairs, const u32* __restrict__ starts, T* __restrict__ grad, u32 n, u32 k,
                                         u32 add) {
    extern __shared__ __align__(128) u8 dynamic_shared[];
    const u32 col_tiles = tiles_of(k, COLS), i = blockIdx.x / col_tiles * ROWS, j = blockIdx.x % col_tiles * COLS;
    const u32 begin_place = starts[blockIdx.y], end = starts[blockIdx.y + 1], length = end - begin_place;
    if (length == 0 && add) return;
    const Depths<ROWS, 256, true> left(dy, n, i);
    const Depths<COLS, 256, true> right(x, k, j);
    // Rows are found a step before they are copied.
    u32 left_rows[2], right_rows[2];
    const auto find = [&](u32 depth) {
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const u32 place = begin_place + depth + threadIdx.x / 8 + r * 32;
            left_rows[r] = place < end ? row_of(pairs, place, dy_chosen) : 0;
            right_rows[r] = place < end ? row_of(pairs, place, x_chosen) : 0;
        }
    };
    find(0);
    GroupSums<COLS> sums = {};
    run_products<STAGES, false, false>(aligned_shared(dynamic_shared), length, ROWS, sums, [&](u8* stage, u32 depth) {
        left.fill(stage, left_rows, length - depth);
        right.fill(stage + ROWS * 128, right_rows, length - depth);
        find(depth + DEPTH);
    });
    T* own = grad + (u64)blockIdx.y * n * k;
    sums.each(n - i, [&](u32 line, u32 col, float a, float b) {
        if (j + col >= k) return;
        store_gradient(own + (u64)(i + line) * k + j + col, a, b, add);
    });
}
#endif

#define PRODUCT(NAME, COLS, STAGES, BLOCKS, BACKWARD, T, type)                                                                     \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                                      \
    NAME##_##COLS##_##type(const bf16* x, const bf16* w, const u32* pairs, const u32* starts, T* out, u32 experts, u32 chosen,     \
                           u32 n, u32 k) {                                                                                         \
        begin();                                                                                                                   \
        ON_HOPPER((product<COLS, STAGES, BACKWARD>(x, w, out, pairs, starts, experts, chosen, BACKWARD ? k : n,                    \
                                                   BACKWARD ? n : k));)                                                            \
    }
#define GRADIENT(COLS, STAGES, BLOCKS, T, type)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                                      \
    gradient_##COLS##_##type(const bf16* dy, u32 dy_chosen, const bf16* x, u32 x_chosen, const u32* pairs, const u32* starts,      \
                             T* grad, u32 n, u32 k, u32 add) {                                                                     \
        begin();                                                                                                                   \
        ON_HOPPER((gradient<COLS, STAGES>(dy, dy_chosen, x, x_chosen, pairs, starts, grad, n, k, add));)                           \
    }
#define ALL(T, type)                                                                                                               \
    PRODUCT(forward, 256, 4, 1, false, T, type)                                                                                    \
    PRODUCT(backward, 256, 4, 1, true, T, type)                                                                                    \
    GRADIENT(128, 3, 2, T, type)
ALL(bf16, bf16)
ALL(float, float)
