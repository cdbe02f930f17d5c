// out = x W^T of numbers of eight bits, both rounded in blocks of 128 along K: on Hopper.
//
// Tiles and rings are those of few.cu, with 128 elements of K a step. The sums of a step are multiplied by the scales of
// x and W, which are powers of two and so exact, and added to the total: the one order, whatever the number of rows.
// Two or four steps take turns, so that products are under way while sums are added.

/// Elements of a step as the copy engine counts them: two codes are one.
#define FP8_PAIRS (FP8_BLOCK / 2)
/// Maximum steps of K.
#define FP8_STEPS 512

/// M, outputs, steps of K up to a multiple of four, rows of a box of x, buffers.
struct Fp8 {
    u32 rows, cols, steps, box, stages;
};

/// Scales of x: [steps, x_pitch], of W: [outputs / 128, w_pitch].
struct Fp8Scales {
    const float *x, *w;
    u32 steps, x_pitch, w_pitch;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define MULTIPLY8(COUNT, N, A, B, ADD)                                                                                             \
    __device__ __forceinline__ void multiply8(float (&d)[COUNT], u64 a, u64 b, u32 add) {                                          \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                              \
                     "wgmma.mma_async.sync.aligned.m64n" N "k32.f32.e4m3.e4m3 {" TEXT##COUNT "}, " A ", " B ", p, 1, 1;\n}"        \
                     : SUMS##COUNT(d)                                                                                              \
                     : "l"(a), "l"(b), "r"(add));                                                                                  \
    }
MULTIPLY8(8, "16", "%8", "%9", "%10")
MULTIPLY8(12, "24", "%12", "%13", "%14")
MULTIPLY8(16, "32", "%16", "%17", "%18")
MULTIPLY8(20, "40", "%20", "%21", "%22")
MULTIPLY8(24, "48", "%24", "%25", "%26")
MULTIPLY8(32, "64", "%32", "%33", "%34")
MULTIPLY8(36, "72", "%36", "%37", "%38")

/// Copies neighbours, a multiple of 16 bytes, to shared memory.
__device__ __forceinline__ void copy_run(u32 to, const float* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier)
                 : "memory");
}
/// Waits for the group's four warps.
__device__ __forceinline__ void group_barrier(u32 group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

/// The scales of one step: of a thread's two rows times those of the columns before and after `split` eights.
struct Fp8Step {
    float x[2], w[2];
};

template <u32 N> struct Fp8Sums {
    float of[N / 2];

    __device__ __forceinline__ void begin(u32 left, u32 right) {
        hold(of);
        begin_products();
#pragma unroll
        for (u32 k = 0; k < 4; k++) multiply8(of, operand(left) + 2 * k, operand(right) + 2 * k, k > 0);
        end_products();
    }
    __device__ __forceinline__ void add_to(float (&total)[N / 2], const Fp8Step& step, u32 split) {
        hold(of);
        const float first[2] = {step.x[0] * step.w[0], step.x[1] * step.w[0]}, second[2] = {step.x[0] * step.w[1], step.x[1] * step.w[1]};
#pragma unroll
        for (u32 j = 0; j < N / 8; j++) {
            const bool after = j >= split;
            const float low = after ? second[0] : first[0], high = after ? second[1] : first[1];
            total[4 * j] = fma(of[4 * j], low, total[4 * j]);
            total[4 * j + 1] = fma(of[4 * j + 1], low, total[4 * j + 1]);
            total[4 * j + 2] = fma(of[4 * j + 2], high, total[4 * j + 2]);
            total[4 * j + 3] = fma(of[4 * j + 3], high, total[4 * j + 3]);
        }
    }
};

/// Adds the sums of steps in order, each as soon as its products have ended.
template <u32 N, u32 SETS, u32 S, class Freed>
__device__ __forceinline__ void end_steps(float (&total)[N / 2], Fp8Sums<N> (&sums)[SETS], const Fp8Step (&by)[SETS], u32 split, const Freed& freed) {
    if constexpr (S < SETS) {
        wait_products<SETS - 1 - S>();
        freed(S);
        sums[S].add_to(total, by[S], split);
        end_steps<N, SETS, S + 1>(total, sums, by, split, freed);
    }
}

/// What a group of warps reads of a buffer: where its rows of x, W's rows and the scales of its thread's row are.
struct Fp8Parts {
    u32 x, w, scales, scales_bytes;
};

/// A tile's total, with the scales of W of each step in `scales`: before the column block's end and after it. SETS steps
/// are under way at a time; their number is a multiple of that, so that nothing depends on a condition meanwhile.
template <u32 N, u32 SETS>
__device__ __forceinline__ void fp8_total(float (&total)[N / 2], Ring& ring, u32 steps, const Fp8Parts& own, const float2* scales, u32 split) {
#pragma unroll
    for (u32 i = 0; i < N / 2; i++) total[i] = 0.0f;
    for (u32 i = 0; i < steps; i += SETS) {
        Fp8Sums<N> sums[SETS];
        Fp8Step by[SETS];
        u32 stage[SETS], at[SETS];
#pragma unroll
        for (u32 s = 0; s < SETS; s++) {
            barrier_wait(ring.full(), ring.parity);
            stage[s] = ring.stage, at[s] = ring.at();
            ring.next();
        }
#pragma unroll
        for (u32 s = 0; s < SETS; s++) sums[s].begin(at[s] + own.x, at[s] + own.w);
#pragma unroll
        for (u32 s = 0; s < SETS; s++) {
            const float2 w = scales[i + s];
            const u32 x = own.scales + stage[s] * own.scales_bytes;
            by[s] = {{0.0f, 0.0f}, {w.x, w.y}};
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(by[s].x[0]) : "r"(x) : "memory");
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(by[s].x[1]) : "r"(x + 32) : "memory");
        }
        end_steps<N, SETS, 0>(total, sums, by, split, [&](u32 s) {
            if (threadIdx.x % WARP == 0) barrier_arrive(ring.empty(stage[s]));
        });
    }
}

template <u32 GROUPS, u32 N, class Put>
__device__ __forceinline__ void fp8_rows(const Fp8& of, const Fp8Scales& by, const TensorMap* x, const TensorMap* w, bool fixed,
                                         const Put& put) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    __shared__ u64 barriers[2 * STAGES_MAX];
    // The scales of W of each group's tile.
    __shared__ float2 w_scales[GROUPS][FP8_STEPS];
    const u32 step_bytes = (of.box + N) * 128, of_x = of.box * 128, full_bytes = step_bytes + of.box * 4;
    Ring ring = ring_of(barriers, dynamic_shared, of.stages, step_bytes, 4 * GROUPS);
    // After the buffers, and what products read beyond the last: the scales of x of each.
    const u32 x_scales = ring.buffers + of.stages * step_bytes + (GROUPS * 64 - of.box) * 128;
    constexpr u32 SCALES_BYTES = GROUPS * 64 * 4;
    // Tiles of the same columns follow one another, so that W comes from memory once.
    const u32 row_tiles = tiles_of(of.rows, GROUPS * 64), tiles = row_tiles * tiles_of(of.cols, N);
    const u32 warp = own_warp();
    if (warp == 4 * GROUPS) {
        if (threadIdx.x % WARP > 0) return;
        const u32 ahead = !fixed ? 0 : of.steps < ring.stages ? of.steps : ring.stages;
        u32 left = ahead;
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            for (u32 i = 0; i < of.steps; i++) {
                if (left > 0) {
                    left--;
                    barrier_expect(ring.full(), full_bytes);
                } else {
                    if (ahead == 0 && i == 0 && tile == blockIdx.x) wait_for_others();
                    ring.fill(full_bytes);
                }
                copy_box(ring.at() + of_x, w, i * FP8_PAIRS, tile / row_tiles * N, ring.full());
                ring.next();
            }
        }
    } else if (warp == 4 * GROUPS + 1) {
        if (threadIdx.x % WARP > 0) return;
        wait_for_others();
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            for (u32 i = 0; i < of.steps; i++) {
                barrier_wait(ring.empty(ring.stage), ring.parity ^ 1);
                const u32 row = tile % row_tiles * GROUPS * 64, step = i < by.steps ? i : by.steps - 1;
                copy_box(ring.at(), x, i * FP8_PAIRS, row, ring.full());
                copy_run(x_scales + ring.stage * SCALES_BYTES, by.x + (u64)step * by.x_pitch + row, of.box * 4, ring.full());
                ring.next();
            }
        }
    } else {
        const u32 group = GROUPS == 1 ? 0 : warp / 4, first = group * 64;
        const Fp8Parts own = {first * 128, of_x, x_scales + (first + own_row()) * 4, SCALES_BYTES};
        wait_for_others();
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const u32 r = tile % row_tiles * GROUPS * 64 + first + own_row(), col = tile / row_tiles * N;
            // Columns beyond the matrix have the scale of its last.
            const u32 last = (of.cols - 1) / FP8_BLOCK, block = col / FP8_BLOCK, other = block + 1;
            const u32 split = (FP8_BLOCK - col % FP8_BLOCK) / 8;
            group_barrier(group);
            for (u32 i = threadIdx.x % 128; i < of.steps; i += 128) {
                const float* w = by.w + (i < by.steps ? i : by.steps - 1);
                w_scales[group][i] = make_float2(w[(u64)block * by.w_pitch], w[(u64)(other < last ? other : last) * by.w_pitch]);
            }
            group_barrier(group);
            float total[N / 2];
            fp8_total<N, (GROUPS * N > 96 ? 2 : 4)>(total, ring, of.steps, own, w_scales[group], split);
            if (r < of.rows) put.template row<N, 0>(total, r, col, of.cols);
            if (r + 8 < of.rows) put.template row<N, 1>(total, r + 8, col, of.cols);
        }
    }
}
#endif

#define MAP(name) const __grid_constant__ TensorMap name
/// `is_fixed`: W was written before the kernels that precede this one.
#define FP8(NAME, GROUPS, N, PUT, ...)                                                                                             \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 2 * WARP) NAME##_##GROUPS##_##N(                                   \
        MAP(x), MAP(w), const float* x_scales, const float* w_scales, u32 scale_steps, u32 x_pitch, u32 w_pitch, u32 rows, u32 cols,   \
        u32 steps, u32 box, u32 stages, u32 is_fixed, __VA_ARGS__) {                                                               \
        call_others();                                                                                                             \
        ON_HOPPER(const Fp8 of = {rows, cols, steps, box, stages}; const Fp8Scales by = {x_scales, w_scales, scale_steps, x_pitch, w_pitch}; \
                  fp8_rows<GROUPS, N>(of, by, &x, &w, is_fixed, PUT);)                                                             \
    }
#define FP8S(GROUPS, N)                                                                                                            \
    FP8(fp8_bf16, GROUPS, N, (ToBf16{out, bias}), const bf16* bias, bf16* out)                                                     \
    FP8(fp8_float, GROUPS, N, (ToF32{out, added}), const float* added, float* out)
FP8S(1, 16)
FP8S(1, 24)
FP8S(1, 32)
FP8S(1, 40)
FP8S(1, 48)
FP8S(1, 64)
FP8S(1, 72)
FP8S(2, 32)
FP8S(2, 48)
FP8S(2, 64)
