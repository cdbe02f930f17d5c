// Gradients of A and B of one linear layer's adapters in bf16: sums over rows of a wide matrix times a narrow one, all
// in one launch. They are bound by memory: each wide matrix is read about once. Hopper has its own file.
//
// A block has 128 wide columns, 32 narrow ones and a run of rows; a second kernel adds the runs in order.

#define WIDE 128
#define NARROW 32
/// Rows of a step.
#define STEP 32
#define STAGES 4
/// Elements between rows in shared memory: eight rows apart fall on different banks.
#define WIDE_PITCH (WIDE + 8)
#define NARROW_PITCH (NARROW + 8)
#define TILE_ELEMENTS (WIDE * NARROW)

/// Copies `STEP` rows of up to COLS columns into shared memory; zeros outside.
template <u32 COLS, u32 PITCH>
__device__ __forceinline__ void fill(bf16* tile, const bf16* from, u32 stride, u32 row, u32 end, u32 col, u32 n) {
#pragma unroll
    for (u32 piece = threadIdx.x; piece < STEP * COLS / 8; piece += 128) {
        u32 line = piece / (COLS / 8), at = piece % (COLS / 8) * 8;
        bool inside = row + line < end && col + at < n;
        copy_async_16(tile + line * PITCH + at, inside ? from + (u64)(row + line) * stride + col + at : from, inside);
    }
}

extern "C" __global__ void __launch_bounds__(128)
adapter_gradients(const bf16* dy, u32 dy_stride, const bf16* u, u32 sr, u32 rank, const bf16* x, u32 k, const bf16* du, u32 first0,
                  u32 n0, u32 first1, u32 n1, u32 first2, u32 n2, u32 m, u32 rows, float* parts) {
    begin();
    __shared__ __align__(16) bf16 wide_tiles[STAGES][STEP * WIDE_PITCH];
    __shared__ __align__(16) bf16 narrow_tiles[STAGES][STEP * NARROW_PITCH];
    const Tile<WIDE, NARROW> at({{n0, n1, n2}, rank, sr, k}, blockIdx.x);
    u32 first = at.index == 0 ? first0 : at.index == 1 ? first1 : first2;
    const bf16 *wide = at.of_a() ? x : dy + first, *narrow = at.of_a() ? du : u + at.index * rank;
    u32 stride = at.of_a() ? k : dy_stride;
    u32 row = blockIdx.y * rows, end = row + rows < m ? row + rows : m;
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float sums[2][4][4] = {};
    auto load = [&](u32 stage, u32 from) {
        fill<WIDE, WIDE_PITCH>(wide_tiles[stage], wide, stride, from, end, at.wide, at.n);
        fill<NARROW, NARROW_PITCH>(narrow_tiles[stage], narrow, sr, from, end, at.narrow, at.r);
    };
#pragma unroll
    for (u32 stage = 0; stage < STAGES - 1; stage++) {
        if (row + stage * STEP < end) load(stage, row + stage * STEP);
        copy_async_commit();
    }
    u32 stage = 0;
    for (; row < end; row += STEP) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        u32 ahead = row + (STAGES - 1) * STEP, free = stage == 0 ? STAGES - 1 : stage - 1;
        if (ahead < end) load(free, ahead);
        copy_async_commit();
#pragma unroll
        for (u32 d = 0; d < STEP; d += 16) {
            // As four 8 x 8 matrices, transposed: the next eight columns and then the next eight rows of the wide
            // operand, the reverse for the narrow one.
            u32 low = lane % 8 + lane / 8 % 2 * 8, high = lane % 8 + lane / 16 * 8;
            u32 a[2][4], b[2][4];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                u32 col = warp * 32 + i * 16 + lane / 8 % 2 * 8;
                ldmatrix_x4_trans(a[i], wide_tiles[stage] + (d + high) * WIDE_PITCH + col);
                ldmatrix_x4_trans(b[i], narrow_tiles[stage] + (d + low) * NARROW_PITCH + i * 16 + lane / 16 * 8);
            }
#pragma unroll
            for (u32 i = 0; i < 2; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    u32 two[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
                    mma_bf16(sums[i][j], a[i], two);
                }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    float* out = parts + ((u64)blockIdx.x * gridDim.y + blockIdx.y) * TILE_ELEMENTS;
#pragma unroll
    for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                u32 at_wide = warp * 32 + i * 16 + c / 2 * 8 + lane / 4, at_narrow = j * 8 + lane % 4 * 2 + c % 2;
                out[at.of_a() ? at_narrow * WIDE + at_wide : at_wide * NARROW + at_narrow] = sums[i][j][c];
            }
}

/// grad = the sum of a tile's runs, or grad += that. Four elements a thread.
template <class T>
__device__ __forceinline__ void add_runs(const Shape& of, const float* parts, u32 runs, T* const (&grads)[4], u32 add) {
    const Tile<WIDE, NARROW> at(of, blockIdx.x);
    u32 e = (blockIdx.y * 256 + threadIdx.x) * 4;
    u32 row = at.of_a() ? at.narrow + e / WIDE : at.wide + e / NARROW, col = at.of_a() ? at.wide + e % WIDE : at.narrow + e % NARROW;
    u32 rows = at.of_a() ? at.r : at.n, cols = at.of_a() ? at.n : at.r;
    if (row >= rows || col >= cols) return;
    const float* from = parts + (u64)blockIdx.x * runs * TILE_ELEMENTS + e;
    float sum[4] = {};
    for (u32 run = 0; run < runs; run++) {
        float x[4];
        load4(from + (u64)run * TILE_ELEMENTS, x);
#pragma unroll
        for (u32 i = 0; i < 4; i++) sum[i] = sum[i] + x[i];
    }
    put(grads[at.index] + (u64)row * cols + col, sum, add);
}

#define ADD_RUNS(T, type)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
    adapter_add_runs_##type(const float* parts, u32 runs, u32 n0, u32 n1, u32 n2, u32 rank, u32 sr, u32 k, T* db0,     \
                            T* db1, T* db2, T* da, u32 add) {                                                          \
        begin();                                                                                                       \
        T* const grads[4] = {db0, db1, db2, da};                                                                       \
        add_runs<T>({{n0, n1, n2}, rank, sr, k}, parts, runs, grads, add);                                             \
    }
ADD_RUNS(bf16, bf16)
ADD_RUNS(float, float)
