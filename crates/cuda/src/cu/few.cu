// out = x W^T of few rows, at the speed at which memory gives W: what a token of decoding waits for.
//
// A block of threads takes tiles of N outputs in turn. One thread copies W and one x, 64 elements of K a step, through
// a ring that fills what shared memory a multiprocessor has; 4 GROUPS warps multiply, each four of them 64 rows. W's
// first buffers are copied before the kernels in front have ended, where those do not write it: while a norm or
// attention is under way, memory does not rest. A sum is one chain of steps of 16 along K, as everywhere.

#define STEP 64

/// M, outputs, steps of K, rows of a box of x, buffers.
struct Few {
    u32 rows, cols, steps, box, stages;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Rows of x from (step, row) on, and a tile's rows of W. Boxes of x may have fewer rows than are multiplied: what lies
/// after them in the ring is taken for rows that are not stored.
template <u32 GROUPS, u32 N, u32 STEPS, class Put>
__device__ __forceinline__ void few_rows(const Few& of, const TensorMap* x, const TensorMap* w, bool fixed, const Put& put) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    __shared__ u64 barriers[2 * STAGES_MAX];
    const u32 step_bytes = (of.box + N) * 128, of_x = of.box * 128, buffers = tiles_of(of.steps, STEPS);
    Ring ring = ring_of(barriers, dynamic_shared, of.stages, STEPS * step_bytes, 4 * GROUPS);
    constexpr u32 RUNS = Put::RUNS, WIDTH = N / RUNS;
    // Tiles of the same columns follow one another, so that W comes from memory once.
    const u32 row_tiles = tiles_of(of.rows, GROUPS * 64), tiles = row_tiles * tiles_of(of.cols, WIDTH);
    const u32 warp = own_warp();
    if (warp == 4 * GROUPS) {
        if (threadIdx.x % WARP > 0) return;
        const u32 ahead = !fixed ? 0 : buffers < ring.stages ? buffers : ring.stages;
        u32 left = ahead;
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            for (u32 i = 0; i < buffers; i++) {
                if (left > 0) {
                    left--;
                    barrier_expect(ring.full(), STEPS * step_bytes);
                } else {
                    if (ahead == 0 && i == 0 && tile == blockIdx.x) wait_for_others();
                    ring.fill(STEPS * step_bytes);
                }
#pragma unroll
                for (u32 l = 0; l < STEPS; l++)
#pragma unroll
                    for (u32 run = 0; run < RUNS; run++)
                        copy_box(ring.at() + l * step_bytes + of_x + run * WIDTH * 128, w, (STEPS * i + l) * STEP, run * of.cols + tile / row_tiles * WIDTH, ring.full());
                ring.next();
            }
        }
    } else if (warp == 4 * GROUPS + 1) {
        if (threadIdx.x % WARP > 0) return;
        wait_for_others();
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            for (u32 i = 0; i < buffers; i++) {
                barrier_wait(ring.empty(ring.stage), ring.parity ^ 1);
#pragma unroll
                for (u32 l = 0; l < STEPS; l++) copy_box(ring.at() + l * step_bytes, x, (STEPS * i + l) * STEP, tile % row_tiles * GROUPS * 64, ring.full());
                ring.next();
            }
        }
    } else {
        const u32 first = GROUPS == 1 ? 0 : warp / 4 * 64;
        wait_for_others();
        float sums[N / 2];
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            Reader reader = {0, false};
            for (u32 i = 0; i < buffers; i++) {
                barrier_wait(ring.full(), ring.parity);
                hold(sums);
                begin_products();
                const u32 at = ring.at();
#pragma unroll
                for (u32 l = 0; l < STEPS; l++) {
                    const u64 left = operand(at + first * 128 + l * step_bytes), right = operand(at + of_x + l * step_bytes);
                    // A description counts 16 bytes.
#pragma unroll
                    for (u32 k = 0; k < 4; k++) multiply(sums, left + 2 * k, right + 2 * k, i + l + k > 0);
                }
                reader.end_step(ring);
            }
            reader.end(ring);
            hold(sums);
            const u32 r = tile % row_tiles * GROUPS * 64 + first + own_row(), col = tile / row_tiles * WIDTH;
            if (r < of.rows) put.template row<N, 0>(sums, r, col, of.cols);
            if (r + 8 < of.rows) put.template row<N, 1>(sums, r + 8, col, of.cols);
        }
    }
}
#endif

#define MAP(name) const __grid_constant__ TensorMap name
/// `is_fixed`: W was written before the kernels that precede this one.
#define FEW(NAME, GROUPS, N, PUT, ...)                                                                                             \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 2 * WARP) NAME##_##GROUPS##_##N(                                   \
        MAP(x), MAP(w), u32 rows, u32 cols, u32 steps, u32 box, u32 stages, u32 is_fixed, __VA_ARGS__) {                           \
        call_others();                                                                                                             \
        ON_HOPPER(const Few of = {rows, cols, steps, box, stages};                                                                 \
                  few_rows<GROUPS, N, N * GROUPS < 64 ? 2 : 1>(of, &x, &w, is_fixed, PUT);)                                        \
    }
#define FEWS(GROUPS, N)                                                                                                            \
    FEW(few_bf16, GROUPS, N, (ToBf16{out, bias}), const bf16* bias, bf16* out)                                                     \
    FEW(few_float, GROUPS, N, (ToF32{out, added}), const float* added, float* out)
#define FEW_GATED(GROUPS, N) FEW(few_gated, GROUPS, N, (ToGated{out, is_gelu}), bf16* out, u32 is_gelu)
FEWS(1, 16)
FEWS(1, 24)
FEWS(1, 32)
FEWS(1, 40)
FEWS(1, 48)
FEWS(2, 32)
FEWS(2, 48)
FEWS(2, 64)
FEWS(2, 96)
FEW_GATED(1, 16)
FEW_GATED(1, 32)
FEW_GATED(1, 48)
FEW_GATED(2, 32)
FEW_GATED(2, 64)
FEW_GATED(2, 96)
