// Products of experts with many pairs by Hopper's own instructions, in bf16: those of experts.cu and experts_dw.cu, in
// the same steps of 16 depths with the same bits: zeros after the last change none. On other cards the file is empty.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// Threads of the groups that multiply, and of the one that copies.
#define MULTIPLYING 256
#define COPYING 128

/// Counts a thread's copies so far as arrived when they have ended.
__device__ __forceinline__ void arrive_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Copies the steps of a tile: weights by boxes, rows of x where their pairs say.
template <u32 COLS, bool BACKWARD, class Row>
__device__ __forceinline__ void copy_steps(Ring ring, const bf16* __restrict__ x, const TensorMap* w, u32 rows, u32 first, u32 w_row, u32 L,
                                           const Row& row) {
    const u32 thread = threadIdx.x - MULTIPLYING, piece = thread % 8;
    const bf16* from[ROWS / 16];
#pragma unroll
    for (u32 i = 0; i < ROWS / 16; i++) {
        const u32 line = thread / 8 + i * 16;
        from[i] = line < rows ? x + (u64)row(line) * L + piece * 8 : nullptr;
    }
    for (u32 depth = 0; depth < L; depth += DEPTH) {
        barrier_wait(ring.empty(ring.stage), ring.parity ^ 1);
        const u32 at = ring.at();
        if (thread == 0) {
            barrier_expect(ring.full(), COLS * 128);
            if constexpr (BACKWARD) {
#pragma unroll
                for (u32 panel = 0; panel < COLS / 64; panel++)
                    copy_box(at + ROWS * 128 + panel * PANEL_BYTES, w, first + panel * 64, w_row + depth, ring.full());
            } else {
                copy_box(at + ROWS * 128, w, depth, w_row + first, ring.full());
            }
        }
#pragma unroll
        for (u32 i = 0; i < ROWS / 16; i++) {
            const u32 line = thread / 8 + i * 16;
            if (from[i]) copy_async_16_to(at + piece_at(line, piece), from[i] + depth);
        }
        arrive_copied(ring.full());
        ring.next();
    }
}

/// The product of experts.cu, of whole steps: one group copies through a ring of buffers, two multiply.
template <u32 COLS, u32 STAGES, bool BACKWARD, class T>
__device__ __forceinline__ void product(const bf16* __restrict__ x, const TensorMap* w, T* __restrict__ out, const u32* __restrict__ pairs,
                                        const u32* __restrict__ starts, u32 experts, u32 chosen, u32 J, u32 L) {
    constexpr u32 STAGE_BYTES = (ROWS + COLS) * 128;
    extern __shared__ __align__(128) u8 dynamic_shared[];
    __shared__ u64 barriers[2 * STAGES];
    const Tile tile = find_tile<ROWS>(starts, experts, blockIdx.x);
    if (tile.rows == 0) return;
    const u32 first = blockIdx.y * COLS, groups = tile.rows > 64 ? 2 : 1;
    Ring ring = {STAGES, STAGE_BYTES, shared_address(aligned_shared(dynamic_shared)), shared_address(barriers), 0, 0};
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(ring.barriers + i * 16, COPYING + 1);
            barrier_init(ring.empty(i), groups * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= MULTIPLYING) {
        copy_steps<COLS, BACKWARD>(ring, x, w, tile.rows, first, tile.expert * (BACKWARD ? L : J), L,
                                   [&](u32 line) { return row_of(pairs, tile.first + line, chosen); });
        copy_async_wait_all();
        return;
    }
    GroupSums<COLS> sums;
    if (sums.first() >= tile.rows) return;
    Reader reader = {0, false};
    for (u32 depth = 0; depth < L; depth += DEPTH) {
        barrier_wait(ring.full(), ring.parity);
        fence_copies();
        hold(sums.of);
        begin_products();
        sums.template add<true, !BACKWARD>(ring.at(), depth > 0);
        reader.end_step(ring);
    }
    reader.end(ring);
    hold(sums.of);
    put_group(sums, out + (u64)tile.first * J + first, J, tile.rows, J - first);
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
    extern "C" __global__ void __launch_bounds__(384, BLOCKS)                                                                      \
    NAME##_##COLS##_##type(const bf16* x, const __grid_constant__ TensorMap w, const u32* pairs, const u32* starts, T* out,        \
                           u32 experts, u32 chosen, u32 n, u32 k) {                                                                \
        begin();                                                                                                                   \
        ON_HOPPER((product<COLS, STAGES, BACKWARD>(x, &w, out, pairs, starts, experts, chosen, BACKWARD ? k : n,                    \
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
