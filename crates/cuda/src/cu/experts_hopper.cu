// Products of experts with many pairs by Hopper's own instructions, in bf16: those of experts.cu and experts_dw.cu, in
// the same steps of 16 depths with the same bits: zeros after the last change none. On other cards the file is empty.
//
// Two groups of four warps have 64 rows each. Rows are where their pairs say: all threads copy, while products run.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ROWS 128

/// Makes earlier writes to shared memory visible to products after the next barrier.
__device__ __forceinline__ void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// A group's sums of 64 rows and COLS columns.
template <u32 COLS> struct GroupSums {
    float of[COLS / 2];

    /// The group's first row, and the first of a thread's two.
    static __device__ __forceinline__ u32 first() { return threadIdx.x / 128 * 64; }
    static __device__ __forceinline__ u32 row() { return first() + threadIdx.x % 128 / WARP * 16 + threadIdx.x % WARP / 4; }

    template <bool A_BY_LINE, bool B_BY_LINE> __device__ __forceinline__ void add(u32 stage) {
        const u32 left = stage + (A_BY_LINE ? first() * 128 : first() / 64 * PANEL_BYTES), right = stage + ROWS * 128;
#pragma unroll
        for (u32 step = 0; step < DEPTH / 16; step++) {
            const u64 a = operand(left + step * (A_BY_LINE ? 32 : 2048));
            const u64 b = B_BY_LINE ? operand(right + step * 32) : operand(right + step * 2048, PANEL_BYTES);
            multiply<!B_BY_LINE, !A_BY_LINE>(of, a, b, 1);
        }
    }
    /// Gives `put` each two neighbours of the first `rows` rows: their row, their first column and the sums.
    template <class Put> __device__ __forceinline__ void each(u32 rows, const Put& put) const {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (row() + half * 8 >= rows) continue;
#pragma unroll
            for (u32 c = 0; c < COLS / 8; c++) {
                put(row() + half * 8, c * 8 + threadIdx.x % 4 * 2, of[c * 4 + half * 2], of[c * 4 + half * 2 + 1]);
            }
        }
    }
};

/// Runs steps of 64 depths through STAGES buffers from `shared` on: `load(stage, depth)` copies. IDLE groups only copy.
template <u32 STAGES, bool A_BY_LINE, bool B_BY_LINE, bool IDLE, u32 COLS, class Load>
__device__ __forceinline__ void run_group(u8* shared, u32 length, GroupSums<COLS>& sums, const Load& load) {
    constexpr u32 STAGE_BYTES = (ROWS + COLS) * 128;
    const u32 first = shared_address(shared);
#pragma unroll
    for (u32 stage = 0; stage < STAGES - 2; stage++) {
        if (stage * DEPTH < length) load(shared + stage * STAGE_BYTES, stage * DEPTH);
        copy_async_commit();
    }
    u32 stage = 0, free = STAGES - 2;
    for (u32 depth = 0; depth < length; depth += DEPTH) {
        copy_async_wait<STAGES - 3>();
        fence_copies();
        __syncthreads();
        if constexpr (!IDLE) {
            hold(sums.of);
            begin_products();
            sums.template add<A_BY_LINE, B_BY_LINE>(first + stage * STAGE_BYTES);
            end_products();
        }
        // Fills the buffer of the step before the last, whose products ended before the barrier.
        const u32 ahead = depth + (STAGES - 2) * DEPTH;
        if (ahead < length) load(shared + free * STAGE_BYTES, ahead);
        copy_async_commit();
        if constexpr (!IDLE) wait_products<1>();
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        free = free == STAGES - 1 ? 0 : free + 1;
    }
    if constexpr (!IDLE) {
        wait_products<0>();
        hold(sums.of);
    }
}

/// The sums of a block's first `rows` rows.
template <u32 STAGES, bool A_BY_LINE, bool B_BY_LINE, u32 COLS, class Load>
__device__ __forceinline__ void run_products(u8* shared, u32 length, u32 rows, GroupSums<COLS>& sums, const Load& load) {
    if (sums.first() < rows) {
        run_group<STAGES, A_BY_LINE, B_BY_LINE, false>(shared, length, sums, load);
    } else {
        run_group<STAGES, A_BY_LINE, B_BY_LINE, true>(shared, length, sums, load);
    }
}

/// Aligns buffers to the order of pieces.
__device__ __forceinline__ u8* aligned_shared(u8* shared) { return shared + (1024 - shared_address(shared) % 1024) % 1024; }

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
