// The product of a linear layer with its adapters, of many rows, and the narrow product before it: see adapted.cuh.
// Each kind of output has a file of kernels, so that they are compiled in parallel.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- wide --------------------------------------------------------------------------------------------

/// The maps of a launch: the activation, W, what u is multiplied by (each block's B, or A), and u.
struct WideMaps {
    const TensorMap *x, *w, *right[3], *u;
};

/// Tiles of 128 rows and N columns, in turn.
template <u32 N, bool BACKWARD> struct Wide {
    static constexpr u32 ROWS = 128, STAGE_BYTES = (ROWS + N) * 128;
    const Layer& of;
    u32 row_tiles;

    __device__ __forceinline__ Wide(const Layer& of) : of(of), row_tiles(tiles_of(of.rows, ROWS)) {}
    __device__ __forceinline__ u32 tiles() const { return row_tiles * tiles_of(of.cols, N); }
    __device__ __forceinline__ u32 row(u32 tile) const { return tile % row_tiles * ROWS; }
    __device__ __forceinline__ u32 col(u32 tile) const { return tile / row_tiles * N; }
    /// True if outputs of block `i` are among those of a tile. All of u adds to each column of dx.
    __device__ __forceinline__ bool has(u32 i, u32 col) const {
        return i < of.blocks && (BACKWARD || (col < of.first[i] + of.width[i] && of.first[i] < col + N));
    }

    __device__ __forceinline__ void send(Ring& ring, const TensorMap* a, u32 ax, u32 row, const TensorMap* b, u32 bx, u32 by) const {
        ring.fill(STAGE_BYTES);
        copy_box(ring.at(), a, ax, row, ring.full());
        copy_columns<BACKWARD, N>(ring.at() + ROWS * 128, b, bx, by, ring.full());
        ring.next();
    }
    __device__ __forceinline__ void produce(const WideMaps& maps, Ring ring) const {
        for (u32 tile = blockIdx.x; tile < tiles(); tile += gridDim.x) {
            const u32 r = row(tile), c = col(tile);
            for (u32 l = 0; l < of.steps * STEP; l += STEP) send(ring, maps.x, l, r, maps.w, BACKWARD ? c : l, BACKWARD ? l : c);
#pragma unroll
            for (u32 i = 0; i < 3; i++) {
                if (!has(i, c)) continue;
                // The other operand is zero where a step reads columns of u, or outputs, that are not the block's.
                for (u32 l = 0; l < of.rank; l += STEP) {
                    const u32 at = i * of.rank + l;
                    send(ring, maps.u, at, r, maps.right[i], BACKWARD ? c : l, BACKWARD ? l : c - of.first[i]);
                }
            }
        }
    }
    template <u32 K> __device__ __forceinline__ void step(float (&sums)[N / 2], u32 group, Ring& ring, Reader& reader) const {
        barrier_wait(ring.full(), ring.parity);
        hold(sums);
        begin_products();
        multiply_step<BACKWARD, K, N>(sums, ring.at() + group * 64 * 128, ring.at() + ROWS * 128, reader.is_begun);
        reader.end_step(ring);
    }
    template <class Put> __device__ __forceinline__ void consume(Ring ring, u32 group, const Put& put) const {
        for (u32 tile = blockIdx.x; tile < tiles(); tile += gridDim.x) {
            const u32 r = row(tile) + group * 64 + own_row(), c = col(tile);
            float sums[N / 2];
            Reader reader = {0, false};
            for (u32 i = 0; i < of.steps; i++) step<4>(sums, group, ring, reader);
#pragma unroll
            for (u32 i = 0; i < 3; i++) {
                if (!has(i, c)) continue;
                for (u32 l = 0; l < of.rank; l += STEP) {
                    if (of.rank - l <= STEP / 2) {
                        step<2>(sums, group, ring, reader);
                    } else {
                        step<4>(sums, group, ring, reader);
                    }
                }
            }
            reader.end(ring);
            hold(sums);
            put.template row<N, N, 0>(sums, r, c, of.cols, of);
            put.template row<N, N, 1>(sums, r + 8, c, of.cols, of);
        }
    }
    template <class Put> __device__ __forceinline__ void run(const WideMaps& maps, u32 stages, const Put& put) const {
        extern __shared__ __align__(16) u8 dynamic_shared[];
        __shared__ u64 barriers[2 * STAGES_MAX];
        const Ring ring = ring_of(barriers, dynamic_shared, stages, STAGE_BYTES, 8);
        const u32 warp = own_warp();
        if (warp >= 8) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (threadIdx.x == 256) produce(maps, ring);
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            consume(ring, warp / 4, put);
        }
    }
};

// ---- narrow ---------------------------------------------------------------------------------------------------------

/// u, or du: a block has 64 rows and up to 64 columns of one block's. A buffer has two steps.
template <bool BACKWARD> struct Narrow {
    static constexpr u32 N = 64, STEP_BYTES = (64 + N) * 128;
    const Layer& of;

    /// Columns of u that a contraction gives.
    __device__ __forceinline__ u32 width() const { return BACKWARD ? of.rank : of.rank * of.blocks; }
    __device__ __forceinline__ void run(const TensorMap* x, const TensorMap* const (&right)[3], u32 stages, float scale, bf16* u) const {
        extern __shared__ __align__(16) u8 dynamic_shared[];
        __shared__ u64 barriers[2 * STAGES_MAX];
        Ring ring = ring_of(barriers, dynamic_shared, stages, 2 * STEP_BYTES, 4);
        const u32 tiles = tiles_of(width(), N), i = blockIdx.x / tiles, col = blockIdx.x % tiles * N, row = blockIdx.y * 64;
        const u32 first = !BACKWARD ? 0 : i == 0 ? of.first[0] : i == 1 ? of.first[1] : of.first[2];
        const u32 depth = !BACKWARD ? of.steps * STEP : i == 0 ? of.width[0] : i == 1 ? of.width[1] : of.width[2];
        const u32 warp = own_warp();
        if (warp == 4) {
            if (threadIdx.x % WARP > 0) return;
            const TensorMap* b = i == 0 ? right[0] : i == 1 ? right[1] : right[2];
            for (u32 l = 0; l < depth; l += 2 * STEP) {
                ring.fill(2 * STEP_BYTES);
                for (u32 half = 0; half < 2; half++) {
                    const u32 at = l + half * STEP, to = ring.at() + half * STEP_BYTES;
                    copy_box(to, x, first + at, row, ring.full());
                    copy_columns<BACKWARD, N>(to + 64 * 128, b, BACKWARD ? col : at, BACKWARD ? at : col, ring.full());
                }
                ring.next();
            }
        } else {
            float sums[N / 2];
            Reader reader = {0, false};
            for (u32 l = 0; l < depth; l += 2 * STEP) {
                barrier_wait(ring.full(), ring.parity);
                hold(sums);
                begin_products();
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32 at = ring.at() + half * STEP_BYTES;
                    multiply_step<BACKWARD, 4, N>(sums, at, at + 64 * 128, reader.is_begun || half > 0);
                }
                reader.end_step(ring);
            }
            reader.end(ring);
            hold(sums);
            const u32 own = col + threadIdx.x % 4 * 2;
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 r = row + own_row() + 8 * half;
                if (r >= of.rows) continue;
                bf16* to = u + (u64)r * of.rank * of.blocks + (BACKWARD ? i * of.rank : 0);
#pragma unroll
                for (u32 j = 0; j < N / 8; j++) {
                    const u32 two = pack_bf16(scale * sums[4 * j + 2 * half], scale * sums[4 * j + 2 * half + 1]);
                    if (own + j * 8 < width()) *(u32*)(to + own + j * 8) = two;
                }
            }
        }
    }
};
#endif

/// `right`: each block's B, or A in the backward pass; boxes of 64 x 128 and 64 x N, or 64 x 64 by columns.
#define WIDE(NAME, N, BACKWARD, PUT, ...)                                                                                          \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                           \
        NAME##_##N(MAP(x), MAP(w), MAP(right0), MAP(right1), MAP(right2), MAP(u), LAYER, __VA_ARGS__) {                            \
        begin();                                                                                                                   \
        ON_HOPPER(OF_LAYER; const WideMaps maps = {&x, &w, {&right0, &right1, &right2}, &u};                                       \
                  const Wide<N, BACKWARD> wide(of); wide.run(maps, stages, PUT);)                                                  \
    }
#define WIDES(NAME, BACKWARD, PUT, ...) \
    WIDE(NAME, 128, BACKWARD, PUT, __VA_ARGS__) \
    WIDE(NAME, 192, BACKWARD, PUT, __VA_ARGS__) \
    WIDE(NAME, 256, BACKWARD, PUT, __VA_ARGS__)

#define NARROW(NAME, BACKWARD)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(160)                                                                              \
        NAME(MAP(x), MAP(right0), MAP(right1), MAP(right2), LAYER, float scale, bf16* u) {                                         \
        begin();                                                                                                                   \
        ON_HOPPER(OF_LAYER; const TensorMap* const right[3] = {&right0, &right1, &right2};                                         \
                  (Narrow<BACKWARD>{of}.run(&x, right, stages, scale, u));)                                                        \
    }
