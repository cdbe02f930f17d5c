// Linear layers with low-rank adapters by Hopper's own instructions: adapters add a few steps to the layer's sums.
//
// Forward: u = scale x A^T, out = x W^T + u_i B_i^T at the outputs of each block i. Backward: du_i = scale dy_i B_i, dx
// = dy W + du A. Each sum is one chain of additions along its steps, rounded once, whatever M and the tile.
//
// One or two threads of a block copy both operands, 64 elements of a step, through a ring of buffers (the copy engine
// writes rows of 128 bytes in the swizzled order that the product reads); the other warps multiply, four of them 64
// rows. A non-finite value of an activation may reach its row's outputs of other blocks: zeros are multiplied too. On
// other cards the file is empty, and `adapter.cu` has the parts.

#define STEP 64
#define PANEL_BYTES (64 * 128)

/// A layer with adapters: M, output columns, steps along the activation's rows, the rank, the outputs of each block.
struct Layer {
    u32 rows, cols, steps, rank, blocks, first[3], width[3];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// b's N columns from (x, y) of a map: rows of 64 elements, or panels of 64 columns.
template <bool BY_COLUMNS, u32 N> __device__ __forceinline__ void copy_columns(u32 to, const TensorMap* b, u32 x, u32 y, u32 barrier) {
    if constexpr (BY_COLUMNS) {
#pragma unroll
        for (u32 panel = 0; panel < N / 64; panel++) copy_box(to + panel * PANEL_BYTES, b, x + panel * 64, y, barrier);
    } else {
        copy_box(to, b, x, y, barrier);
    }
}

/// The tile of a block of threads: 64 rows and N columns, never of two of the layer's blocks.
struct OwnTile {
    /// The layer's block, and the columns that the tile has of it; the block is 3 for columns that nothing is added to.
    u32 block, col, end, row;
    bool is_first;

    __device__ __forceinline__ OwnTile(const Layer& of, u32 N) : block(3), col(0), end(0), row(blockIdx.y * 64), is_first(false) {
        u32 tile = blockIdx.x, begin = 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const bool is_block = i < of.blocks && i < 3;
            const u32 first = is_block ? of.first[i % 3] : i == of.blocks ? of.cols : begin, width = is_block ? of.width[i % 3] : 0;
            if (i > of.blocks) break;
            // Columns before the block, then its own.
            const u32 before = tiles_of(first - begin, N), own = tiles_of(width, N);
            if (tile < before) {
                col = begin + tile * N, end = first;
                return;
            }
            tile -= before;
            if (tile < own) {
                block = i, col = first + tile * N, end = first + width, is_first = tile == 0;
                return;
            }
            tile -= own;
            begin = first + width;
        }
    }
};

/// sums += a step's product of 64 rows and N columns, over the first 16 K elements.
template <bool BY_COLUMNS, u32 K, u32 N> __device__ __forceinline__ void multiply_step(float (&sums)[N / 2], u32 a, u32 b, bool add) {
#pragma unroll
    for (u32 k = 0; k < K; k++) {
        const u64 right = BY_COLUMNS ? operand(b + k * 2048, PANEL_BYTES) : operand(b + k * 32);
        multiply<BY_COLUMNS>(sums, operand(a + k * 32), right, add || k > 0);
    }
}

/// A thread's sums of one row in pairs of neighbours: HALF 0 is row lane / 4 of its warp's, 1 is eight rows further.
#define TWO(sums, j, i) (sums)[4 * (j) + 2 * HALF + (i)]

/// out = sums + bias, or sums.
struct ToBf16 {
    bf16* out;
    const bf16* bias;

    /// The first N of a thread's columns.
    template <u32 N, u32 ALL, int HALF>
    __device__ __forceinline__ void row(const float (&sums)[ALL / 2], u32 row, u32 col, u32 end, const Layer& of) const {
        const u32 lane = threadIdx.x % 4;
        const bool here = row < of.rows;
        bf16* to = out + (u64)row * of.cols;
        u32 packed[N / 8];
#pragma unroll
        for (u32 j = 0; j < N / 8; j++) {
            float x = TWO(sums, j, 0), y = TWO(sums, j, 1);
            const u32 own = col + j * 8 + lane * 2;
            if (bias && own < end) {
                const u32 two = *(const u32*)(bias + own);
                x = x + low_f32(two);
                y = y + high_f32(two);
            }
            packed[j] = pack_bf16(x, y);
        }
        constexpr u32 FOURS = N / 32;
#pragma unroll
        for (u32 i = 1; i <= FOURS; i++) {
            const u32 j = 4 * i - 4;
            u32 x[4] = {packed[j], packed[j + 1], packed[j + 2], packed[j + 3]};
            transpose4(x);
            const u32 own = col + (j + lane) * 8;
            if (here && own < end) *(uint4*)(to + own) = make_uint4(x[0], x[1], x[2], x[3]);
        }
#pragma unroll
        for (u32 j = 4 * FOURS; j < N / 8; j++) {
            const u32 own = col + j * 8 + lane * 2;
            if (here && own < end) *(u32*)(to + own) = packed[j];
        }
    }
};

/// out = added + sums, or sums.
struct ToF32 {
    float* out;
    const float* added;

    /// The first N of a thread's columns.
    template <u32 N, u32 ALL, int HALF>
    __device__ __forceinline__ void row(const float (&sums)[ALL / 2], u32 row, u32 col, u32 end, const Layer& of) const {
        if (row >= of.rows) return;
        const u64 at = (u64)row * of.cols + col + threadIdx.x % 4 * 2;
        constexpr u32 AHEAD = N % 64 == 0 ? 8 : N % 32 == 0 ? 4 : 2;
#pragma unroll
        for (u32 j = 0; j < N / 8; j += AHEAD) {
            float2 x[AHEAD];
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                x[i] = make_float2(0.0f, 0.0f);
                if (added && col + (j + i) * 8 < end) x[i] = *(const float2*)(added + at + (j + i) * 8);
            }
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                const float2 sum = make_float2(x[i].x + TWO(sums, j + i, 0), x[i].y + TWO(sums, j + i, 1));
                if (col + (j + i) * 8 < end) *(float2*)(out + at + (j + i) * 8) = sum;
            }
        }
    }
};
#endif

#define MAP(name) const __grid_constant__ TensorMap name
#define LAYER                                                                                                                      \
    u32 rows, u32 cols, u32 steps, u32 rank, u32 blocks, u32 first0, u32 width0, u32 first1, u32 width1, u32 first2, u32 width2,   \
        u32 stages
#define OF_LAYER const Layer of = {rows, cols, steps, rank, blocks, {first0, first1, first2}, {width0, width1, width2}}
