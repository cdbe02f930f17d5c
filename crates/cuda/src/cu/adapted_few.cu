// The product of a linear layer with its adapters, of few rows: see adapted.cuh.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The maps of a launch of few rows.
struct FewMaps {
    const TensorMap *x, *w, *a, *b[3];
};

/// The forward pass of few rows, with u: a tile has 64 rows and N columns of one block, and each computes the block's u
/// of its rows, at most R columns, next to its own sums.
template <u32 N, u32 R> struct Few : OwnTile {
    /// Steps of a buffer.
    static constexpr u32 STEPS = N < 64 ? 2 : 1;
    const Layer& of;
    /// Bytes of a step: of a box of rows, and with W's columns and A's. What lies after the rows that there are is taken
    /// for rows that are not stored.
    u32 of_rows, step_bytes;

    __device__ __forceinline__ Few(const Layer& of)
        : OwnTile(of, N), of(of), of_rows((of.rows < 64 ? (of.rows + 7) / 8 * 8 : 64) * 128), step_bytes(of_rows + (N + R) * 128) {}
    __device__ __forceinline__ u32 buffers() const { return tiles_of(of.steps, STEPS); }

    /// Copies W and A. What nothing writes is copied before preceding kernels have ended.
    __device__ __forceinline__ void send_columns(const FewMaps& maps, Ring ring, bool fixed) const {
        const TensorMap* b = block == 0 ? maps.b[0] : block == 1 ? maps.b[1] : maps.b[2];
        const u32 rank_row = block < 3 ? block * of.rank : 0, first = block == 0 ? of.first[0] : block == 1 ? of.first[1] : of.first[2];
        const u32 ahead = !fixed ? 0 : buffers() < ring.stages ? buffers() : ring.stages;
        for (u32 i = 0; i < ahead; i++) {
            barrier_expect(ring.full(), STEPS * step_bytes);
            for (u32 l = 0; l < STEPS; l++) copy_box(ring.at() + l * step_bytes + of_rows, maps.w, (STEPS * i + l) * STEP, col, ring.full());
            ring.next();
        }
        ring.stage = ring.parity = 0;
        wait_for_others();
        for (u32 i = 0; i < buffers(); i++) {
            if (i >= ahead) ring.fill(STEPS * step_bytes);
            for (u32 l = 0; l < STEPS; l++) {
                const u32 to = ring.at() + l * step_bytes;
                if (i >= ahead) copy_box(to + of_rows, maps.w, (STEPS * i + l) * STEP, col, ring.full());
                copy_box(to + of_rows + N * 128, maps.a, (STEPS * i + l) * STEP, rank_row, ring.full());
            }
            ring.next();
        }
        if (block < 3) {
            ring.fill(N * 128);
            copy_box(ring.at(), b, 0, col - first, ring.full());
        }
    }
    __device__ __forceinline__ void send_rows(const FewMaps& maps, Ring ring) const {
        wait_for_others();
        for (u32 i = 0; i < buffers(); i++) {
            barrier_wait(ring.empty(ring.stage), ring.parity ^ 1);
            for (u32 l = 0; l < STEPS; l++) copy_box(ring.at() + l * step_bytes, maps.x, (STEPS * i + l) * STEP, row, ring.full());
            ring.next();
        }
    }
    template <class Put> __device__ __forceinline__ void consume(Ring ring, float scale, bf16* u, const Put& put) const {
        wait_for_others();
        // Sums of the layer's outputs, then of u.
        float both[(N + R) / 2];
        Reader reader = {0, false};
        for (u32 i = 0; i < buffers(); i++) {
            barrier_wait(ring.full(), ring.parity);
            hold(both);
            begin_products();
#pragma unroll
            for (u32 l = 0; l < STEPS; l++) {
                const u32 at = ring.at() + l * step_bytes;
                multiply_step<false, 4, N + R>(both, at, at + of_rows, reader.is_begun || l > 0);
            }
            reader.end_step(ring);
        }
        reader.end(ring);
        hold(both);
        const u32 r = row + own_row();
        if (block < 3) {
            // A thread's columns of u are its part of the operand of the last products, in the order that they take it.
            u32 rows[R / 16][4];
#pragma unroll
            for (u32 j = 0; j < R / 8; j++)
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const float* of_u = both + N / 2 + 4 * j + 2 * half;
                    const u32 two = pack_bf16(scale * of_u[0], scale * of_u[1]), own = j * 8 + threadIdx.x % 4 * 2;
                    // Beyond the rank are another block's columns.
                    rows[j / 2][j % 2 * 2 + half] = own < of.rank ? two : 0;
                    if (is_first && own < of.rank && r + 8 * half < of.rows)
                        *(u32*)(u + ((u64)(r + 8 * half) * of.blocks + block) * of.rank + own) = two;
                }
            barrier_wait(ring.full(), ring.parity);
            hold(both);
            begin_products();
            // The products in u's columns are not used.
#pragma unroll
            for (u32 k = 0; k < R / 16; k++) multiply_left(both, rows[k], operand(ring.at() + k * 32), 1);
            end_products();
            wait_products<0>();
            hold(both);
        }
        put.template row<N, N + R, 0>(both, r, col, end, of);
        put.template row<N, N + R, 1>(both, r + 8, col, end, of);
    }
    template <class Put>
    __device__ __forceinline__ void run(const FewMaps& maps, u32 stages, bool fixed, float scale, bf16* u, const Put& put) const {
        extern __shared__ __align__(16) u8 dynamic_shared[];
        __shared__ u64 barriers[2 * STAGES_MAX];
        const Ring ring = ring_of(barriers, dynamic_shared, stages, STEPS * step_bytes, 4);
        const u32 warp = own_warp();
        if (warp == 4) {
            if (threadIdx.x % WARP == 0) send_columns(maps, ring, fixed);
        } else if (warp == 5) {
            if (threadIdx.x % WARP == 0) send_rows(maps, ring);
        } else {
            consume(ring, scale, u, put);
        }
    }
};
#endif

/// `is_fixed`: W was written before the kernels that precede this one.
#define FEW(NAME, N, R, PUT, ...)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(192) NAME##_##N##_##R(MAP(x), MAP(w), MAP(a), MAP(b0), MAP(b1), MAP(b2), LAYER,   \
                                                                       u32 is_fixed, float scale, bf16* u, __VA_ARGS__) {          \
        call_others();                                                                                                             \
        ON_HOPPER(OF_LAYER; const FewMaps maps = {&x, &w, &a, {&b0, &b1, &b2}};                                                    \
                  const Few<N, R> few(of); few.run(maps, stages, is_fixed, scale, u, PUT);)                                        \
    }
#define FEWS(N, R)                                                                                                                 \
    FEW(adapted_few_bf16, N, R, (ToBf16{out, bias}), const bf16* bias, bf16* out)                                                  \
    FEW(adapted_few_float, N, R, (ToF32{out, added}), const float* added, float* out)
FEWS(16, 32)
FEWS(32, 32)
FEWS(64, 32)
FEWS(80, 32)
FEWS(16, 64)
FEWS(32, 64)
FEWS(64, 64)
FEWS(80, 64)
