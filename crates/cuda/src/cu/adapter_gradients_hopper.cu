// Gradients of A and B of one linear layer's adapters by Hopper's own instructions, in bf16: sums over rows of a wide
// matrix times a narrow one, all in one launch. They are bound by memory: each wide matrix is read about once.
//
// A tile has 256 wide columns and 64 narrow ones. Its rows are up to eight runs, each a block of one cluster; the
// blocks then add each other's sums, in order. One warp copies, eight multiply: both operands are read by columns.

#define WIDE 256
#define NARROW 64
/// Rows of a step.
#define ROWS 32
#define THREADS 288

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CLUSTER(RUNS) __cluster_dims__(1, RUNS, 1)
/// Bytes of a panel, 64 columns of a step, and of a buffer.
#define PANEL (ROWS * 128)
#define STAGE_BYTES ((WIDE + NARROW) / 64 * PANEL)
/// Elements between rows of a tile's sums, as a gradient has them: neighbours in a product fall on different banks.
#define PITCH_OF_B (NARROW + 8)
#define PITCH_OF_A (WIDE + 4)

struct Maps {
    const TensorMap *dy, *u, *x, *du;
};

__device__ __forceinline__ void wait_for_cluster() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/// Four elements from the same place in the shared memory of another block of the cluster.
__device__ __forceinline__ void load4_of(u32 block, u32 address, float (&x)[4]) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "r"(there) : "memory");
}

struct Run {
    Tile<WIDE, NARROW> at;
    /// The first column of each operand in its matrix, and the rows.
    u32 wide, narrow, row, end;

    __device__ __forceinline__ void send(const Maps& maps, Ring ring) const {
        const TensorMap *wide_map = at.of_a() ? maps.x : maps.dy, *narrow_map = at.of_a() ? maps.du : maps.u;
        for (u32 r = row; r < end; r += ROWS) {
            ring.fill(STAGE_BYTES);
#pragma unroll
            for (u32 panel = 0; panel < WIDE / 64; panel++) {
                copy_box(ring.at() + panel * PANEL, wide_map, wide + panel * 64, r, ring.full());
            }
            copy_box(ring.at() + WIDE / 64 * PANEL, narrow_map, narrow, r, ring.full());
            ring.next();
        }
    }
    /// Sums of two panels of wide columns.
    __device__ __forceinline__ void multiply_rows(float (&low)[NARROW / 2], float (&high)[NARROW / 2], Ring ring) const {
        Reader reader = {0, false};
        const u32 own = threadIdx.x / 128 * 2 * PANEL;
        for (u32 r = row; r < end; r += ROWS) {
            barrier_wait(ring.full(), ring.parity);
            hold(low);
            hold(high);
            begin_products();
#pragma unroll
            for (u32 k = 0; k < ROWS / 16; k++) {
                const u64 right = operand(ring.at() + WIDE / 64 * PANEL + k * 2048);
                multiply_columns(low, operand(ring.at() + own + k * 2048), right, reader.is_begun || k > 0);
                multiply_columns(high, operand(ring.at() + own + PANEL + k * 2048), right, reader.is_begun || k > 0);
            }
            reader.end_step(ring);
        }
        reader.end(ring);
        hold(low);
        hold(high);
    }
    /// A thread's part of a panel's sums, into the tile: [wide, PITCH_OF_B], or of dA [narrow, PITCH_OF_A].
    __device__ __forceinline__ void keep(const float (&sums)[NARROW / 2], u32 panel, float* tile) const {
        const u32 first = panel * 64 + own_row();
#pragma unroll
        for (u32 j = 0; j < NARROW / 8; j++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 col = j * 8 + threadIdx.x % 4 * 2, line = first + 8 * half;
                const float x = sums[4 * j + 2 * half], y = sums[4 * j + 2 * half + 1];
                if (at.of_a()) {
                    tile[col * PITCH_OF_A + line] = x;
                    tile[(col + 1) * PITCH_OF_A + line] = y;
                } else {
                    *(float2*)(tile + line * PITCH_OF_B + col) = make_float2(x, y);
                }
            }
    }
    /// The cluster's sums of a part of the tile, `block` of RUNS, into the gradient.
    template <u32 RUNS, class T> __device__ __forceinline__ void add_runs(u32 block, const float* tile, T* grad, u32 add) const {
        // Fours of a row of the gradient's part, and what there is of rows and columns.
        const bool of_a = at.of_a();
        const u32 pitch = of_a ? PITCH_OF_A : PITCH_OF_B, fours = (of_a ? WIDE : NARROW) / 4;
        const u32 first_row = of_a ? at.narrow : at.wide, first_col = of_a ? at.wide : at.narrow;
        const u32 rows = of_a ? at.r : at.n, cols = of_a ? at.n : at.r;
        constexpr u32 EACH = WIDE * NARROW / 4 / RUNS;
        for (u32 i = block * EACH + threadIdx.x; i < (block + 1) * EACH; i += THREADS) {
            const u32 r = i / fours, c = i % fours * 4;
            if (first_row + r >= rows || first_col + c >= cols) continue;
            float parts[RUNS][4], sum[4] = {};
#pragma unroll
            for (u32 run = 0; run < RUNS; run++) load4_of(run, shared_address(tile + r * pitch + c), parts[run]);
#pragma unroll
            for (u32 run = 0; run < RUNS; run++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) sum[e] = sum[e] + parts[run][e];
            put(grad + (u64)(first_row + r) * cols + first_col + c, sum, add);
        }
    }
};

template <u32 RUNS, class T>
__device__ __forceinline__ void gradients(const Maps& maps, const Shape& of, const u32 (&first)[3], u32 m, u32 rows, u32 stages,
                                          T* const (&grads)[4], u32 add) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    __shared__ u64 barriers[2 * STAGES_MAX];
    const Ring ring = ring_of(barriers, dynamic_shared, stages, STAGE_BYTES, 8);
    const Tile<WIDE, NARROW> at(of, blockIdx.x);
    const u32 index = at.index, from = index == 0 ? first[0] : index == 1 ? first[1] : index == 2 ? first[2] : 0;
    const u32 row = blockIdx.y * rows;
    // A run beyond the rows has one step, of zeros.
    const u32 end = row >= m ? row + 1 : row + rows < m ? row + rows : m;
    const Run run = {at, from + at.wide, at.narrow + (at.of_a() ? 0 : index * of.rank), row, end};
    // Buffers are empty when the products are: their memory then holds the sums.
    float* tile = (float*)(dynamic_shared + (ring.buffers - shared_address(dynamic_shared)));
    float low[NARROW / 2], high[NARROW / 2];
    if (threadIdx.x == 256) run.send(maps, ring);
    if (threadIdx.x < 256) run.multiply_rows(low, high, ring);
    __syncthreads();
    if (threadIdx.x < 256) {
        run.keep(low, threadIdx.x / 128 * 2, tile);
        run.keep(high, threadIdx.x / 128 * 2 + 1, tile);
    }
    wait_for_cluster();
    T* grad = index == 0 ? grads[0] : index == 1 ? grads[1] : index == 2 ? grads[2] : grads[3];
    run.add_runs<RUNS>(blockIdx.y, tile, grad, add);
    wait_for_cluster();
}
#else
#define CLUSTER(RUNS)
#endif

#define MAP(name) const __grid_constant__ TensorMap name
#define GRADIENTS(T, type, RUNS)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) CLUSTER(RUNS)                                                            \
    adapter_gradients_##type##_##RUNS(MAP(dy), MAP(u), MAP(x), MAP(du), u32 first0, u32 n0, u32 first1, u32 n1, u32 first2,        \
                                      u32 n2, u32 rank, u32 sr, u32 k, u32 m, u32 rows, u32 stages, T* db0, T* db1, T* db2, T* da, \
                                      u32 add) {                                                                                   \
        begin();                                                                                                                   \
        ON_HOPPER(const Maps maps = {&dy, &u, &x, &du}; const Shape of = {{n0, n1, n2}, rank, sr, k};                              \
                  const u32 first[3] = {first0, first1, first2}; T* const grads[4] = {db0, db1, db2, da};                          \
                  gradients<RUNS>(maps, of, first, m, rows, stages, grads, add);)                                                  \
    }
#define GRADIENTS_OF(T, type)                                                                                                      \
    GRADIENTS(T, type, 1)                                                                                                          \
    GRADIENTS(T, type, 2)                                                                                                          \
    GRADIENTS(T, type, 4)                                                                                                          \
    GRADIENTS(T, type, 8)
GRADIENTS_OF(bf16, bf16)
GRADIENTS_OF(float, float)
