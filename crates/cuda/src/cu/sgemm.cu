// Products with a fixed order of accumulation: f32 on plain units, and bf16 by mma.sync where the library has none.
//
// Legend: C[i, j] = sum over l of A(i, l) B(j, l), i < I, j < J, l < L. An operand is a row-major array whose lines are
// its i (or j), "by line", or its l, "by depth"; lines are `stride` elements apart, more than a line has where the
// operand is a run of columns of a wider array:
//   forward    out[M, N] = x[M, K] W[N, K]^T      A by line,  B by line
//   backward_x out[M, K] = dy[M, N] W[N, K]       A by line,  B by depth
//   backward_w grad[N, K] += dy[M, N]^T x[M, K]   A by depth, B by depth
//
// An element is one chain of fused multiply-adds in ascending l (f32), or one chain of steps of 16 in ascending l
// (bf16): its bits depend on its own row of A and B alone, never on I, J or the tile it falls into.

/// Operations on a sum: scale (1 changes no bit), bias, addition to the old value, rounding.
template <class T, class B> struct Target {
    T* out;         // [I, J]
    u32 stride;     // elements from row to row
    const B* bias;  // [J], or null
    float scale;
    bool add;
    bool rounds_first;  // what is added, as cuBLASLt does
    RowsOfSlot of = {};

    __device__ __forceinline__ float value(float sum, u64 at, u32 j) const {
        sum = sum * scale;
        if (bias) sum = sum + to_f32(bias[j]);
        if (!add) return sum;
        return to_f32(out[at]) + (rounds_first ? to_f32(from_f32<T>(sum)) : sum);
    }
};

// ---- f32 ------------------------------------------------------------------------------------------------------------

/// Rows and columns of a tile of C: 256 threads with 4 x 4 each.
#define PLAIN_TILE 64
#define PLAIN_DEPTH 16
/// Floats between depths in shared memory: 16-byte aligned, and two threads of a warp on a bank at most.
#define PLAIN_PITCH 68

/// A thread's four elements of an operand's tile: one line of the array, zeros outside.
template <bool BY_LINE> struct PlainPart {
    u32 line, at;

    __device__ __forceinline__ PlainPart() {
        u32 t = threadIdx.x;
        line = BY_LINE ? t / 4 : t / 16;
        at = BY_LINE ? t % 4 * 4 : t % 16 * 4;
    }

    /// Elements of the tile from `first` and depth `l` on; the operand has `n` lines (or columns) and depth `depth`.
    __device__ __forceinline__ float4 load(const float* x, u32 stride, u32 first, u32 n, u32 l, u32 depth,
                                           bool wide) const {
        u32 row = (BY_LINE ? first : l) + line, rows = BY_LINE ? n : depth;
        u32 col = (BY_LINE ? l : first) + at, cols = BY_LINE ? depth : n;
        float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row >= rows || col >= cols) return out;
        const float* p = x + (u64)row * stride + col;
        if (wide) return *(const float4*)p;
        out.x = p[0];
        if (col + 1 < cols) out.y = p[1];
        if (col + 2 < cols) out.z = p[2];
        if (col + 3 < cols) out.w = p[3];
        return out;
    }

    __device__ __forceinline__ void store(float* tile, float4 x) const {
        if (BY_LINE) {
            tile[(at + 0) * PLAIN_PITCH + line] = x.x;
            tile[(at + 1) * PLAIN_PITCH + line] = x.y;
            tile[(at + 2) * PLAIN_PITCH + line] = x.z;
            tile[(at + 3) * PLAIN_PITCH + line] = x.w;
        } else {
            *(float4*)(tile + line * PLAIN_PITCH + at) = x;
        }
    }
};

/// True if lines of `cols` elements of `size` bytes can be read 16 bytes at a time: none reaches beyond its line.
__device__ __forceinline__ bool is_wide(const void* x, u32 stride, u32 cols, u32 size) {
    return ((u64)x | (u64)stride * size | (u64)cols * size) % 16 == 0;
}

template <bool A_BY_LINE, bool B_BY_LINE, class T>
__device__ __forceinline__ void plain_product(const float* a, u32 a_stride, const float* b, u32 b_stride,
                                              Target<T, float> to, u32 I, u32 J, u32 L) {
    __shared__ __align__(16) float tiles[2][2][PLAIN_DEPTH * PLAIN_PITCH];
    u32 i = blockIdx.y * PLAIN_TILE, j = blockIdx.x * PLAIN_TILE;
    bool a_wide = is_wide(a, a_stride, A_BY_LINE ? L : I, 4), b_wide = is_wide(b, b_stride, B_BY_LINE ? L : J, 4);
    PlainPart<A_BY_LINE> a_part;
    PlainPart<B_BY_LINE> b_part;
    u32 row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4;
    float sums[4][4] = {};

    float4 next_a = a_part.load(a, a_stride, i, I, 0, L, a_wide);
    float4 next_b = b_part.load(b, b_stride, j, J, 0, L, b_wide);
    u32 stage = 0;
    for (u32 l = 0; l < L; l += PLAIN_DEPTH, stage ^= 1) {
        float *a_tile = tiles[stage][0], *b_tile = tiles[stage][1];
        a_part.store(a_tile, next_a);
        b_part.store(b_tile, next_b);
        __syncthreads();
        // The next tile arrives while this one is used. No thread writes a stage before all have left it: the barrier
        // of the step between comes first.
        next_a = a_part.load(a, a_stride, i, I, l + PLAIN_DEPTH, L, a_wide);
        next_b = b_part.load(b, b_stride, j, J, l + PLAIN_DEPTH, L, b_wide);
#pragma unroll
        for (u32 d = 0; d < PLAIN_DEPTH; d++) {
            float4 x4 = *(const float4*)(a_tile + d * PLAIN_PITCH + row);
            float4 y4 = *(const float4*)(b_tile + d * PLAIN_PITCH + col);
            float x[4] = {x4.x, x4.y, x4.z, x4.w}, y[4] = {y4.x, y4.y, y4.z, y4.w};
#pragma unroll
            for (u32 r = 0; r < 4; r++)
#pragma unroll
                for (u32 c = 0; c < 4; c++) sums[r][c] = fma(x[r], y[c], sums[r][c]);
        }
    }
#pragma unroll
    for (u32 r = 0; r < 4; r++)
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            u64 at = (u64)(i + row + r) * to.stride + j + col + c;
            if (i + row + r < I && j + col + c < J && to.of.has(i + row + r)) to.out[at] = from_f32<T>(to.value(sums[r][c], at, j + col + c));
        }
}

extern "C" __global__ void __launch_bounds__(256)
forward_f32_f32(const float* __restrict__ x, u32 x_stride, const float* __restrict__ w, const float* __restrict__ bias,
                float* out, u32 out_stride, u32 m, u32 n, u32 k, float scale, u32 add, OF_SLOT) {
    begin();
    const RowsOfSlot of = ROWS_OF_SLOT;
    const Target<float, float> to = {out, out_stride, bias, of.scale(scale), add != 0, false, of};
    plain_product<true, true>(x, x_stride, w, k, to, m, n, k);
}

extern "C" __global__ void __launch_bounds__(256)
backward_x_f32_f32(const float* __restrict__ dy, u32 dy_stride, const float* __restrict__ w, float* out, u32 out_stride,
                   u32 m, u32 n, u32 k, float scale, u32 add) {
    begin();
    plain_product<true, false>(dy, dy_stride, w, k,
                               Target<float, float>{out, out_stride, nullptr, scale, add != 0, false}, m, k, n);
}

#define BACKWARD_W_F32(T, types)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
    backward_w_##types(const float* __restrict__ dy, u32 dy_stride, const float* __restrict__ x, u32 x_stride,        \
                       T* grad, u32 m, u32 n, u32 k) {                                                                \
        begin();                                                                                                      \
        plain_product<false, false>(dy, dy_stride, x, x_stride,                                                       \
                                    Target<T, float>{grad, k, nullptr, 1.0f, true, true}, n, k, m);                   \
    }
BACKWARD_W_F32(float, f32_f32)
BACKWARD_W_F32(bf16, f32_bf16)

// ---- bf16 -----------------------------------------------------------------------------------------------------------

/// Rows and columns of a tile of C: eight warps of 64 x 32.
#define TILE 128
#define DEPTH 32
#define STAGES 3
/// Elements between lines in shared memory: eight lines apart in a step of 16 bytes fall on different banks.
#define LINE_PITCH (DEPTH + 8)
#define DEPTH_PITCH (TILE + 8)
/// Elements of an operand's tile; `by line` needs more than `by depth` (4,352).
#define TILE_ELEMENTS (TILE * LINE_PITCH)

/// An operand of the tensor cores: [n, depth] by line, or [depth, n] by depth.
template <bool BY_LINE> struct Operand {
    const bf16* x;
    u32 stride, first, n, depth;
    bool wide;

    __device__ __forceinline__ Operand(const bf16* x, u32 stride, u32 first, u32 n, u32 depth)
        : x(x), stride(stride), first(first), n(n), depth(depth), wide(is_wide(x, stride, BY_LINE ? depth : n, 2)) {}

    /// Starts copying depths l..l + DEPTH of the tile; zeros outside. Each thread has two pieces of eight elements.
    __device__ __forceinline__ void fill(bf16* tile, u32 l) const {
        const u32 pieces = BY_LINE ? DEPTH / 8 : TILE / 8;
        u32 rows = BY_LINE ? n : depth, cols = BY_LINE ? depth : n;
#pragma unroll
        for (u32 piece = threadIdx.x; piece < TILE * DEPTH / 8; piece += 256) {
            u32 line = piece / pieces, at = piece % pieces * 8;
            u32 row = (BY_LINE ? first : l) + line, col = (BY_LINE ? l : first) + at;
            bf16* dst = tile + line * (BY_LINE ? LINE_PITCH : DEPTH_PITCH) + at;
            bool inside = row < rows && col < cols;
            const bf16* src = inside ? x + (u64)row * stride + col : x;
            if (wide) {
                copy_async_16(dst, src, inside);
            } else {
                for (u32 e = 0; e < 8; e++) {
                    bf16 zero = {0};
                    dst[e] = inside && col + e < cols ? src[e] : zero;
                }
            }
        }
    }

    /// 16 lines from `line` and 16 depths from `l`, as four 8 x 8 matrices. DEPTH_SECOND: the second matrix is the
    /// next eight depths (operand B), else the next eight lines (operand A).
    template <bool DEPTH_SECOND>
    __device__ __forceinline__ static void fragment(u32 (&r)[4], const bf16* tile, u32 line, u32 l) {
        u32 lane = threadIdx.x % WARP;
        u32 second = lane / 8 % 2 * 8, third = lane / 16 * 8;
        u32 lines = line + (DEPTH_SECOND ? third : second), depths = l + (DEPTH_SECOND ? second : third);
        if (BY_LINE) {
            ldmatrix_x4(r, tile + (lines + lane % 8) * LINE_PITCH + depths);
        } else {
            ldmatrix_x4_trans(r, tile + (depths + lane % 8) * DEPTH_PITCH + lines);
        }
    }
};

__device__ __forceinline__ void store_pair(float* to, float a, float b) { *(float2*)to = make_float2(a, b); }
__device__ __forceinline__ void store_pair(bf16* to, float a, float b) { *(u32*)to = pack_bf16(a, b); }

template <bool A_BY_LINE, bool B_BY_LINE, class T>
__device__ __forceinline__ void product(u8* shared, const bf16* a, u32 a_stride, const bf16* b, u32 b_stride,
                                        Target<T, bf16> to, u32 I, u32 J, u32 L) {
    bf16* tiles = (bf16*)shared; // [STAGES][A, B][TILE_ELEMENTS]
    u32 i = blockIdx.y * TILE, j = blockIdx.x * TILE;
    Operand<A_BY_LINE> A(a, a_stride, i, I, L);
    Operand<B_BY_LINE> B(b, b_stride, j, J, L);
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 row = warp / 4 * 64, col = warp % 4 * 32;
    float sums[4][4][4] = {};

    for (u32 stage = 0; stage < STAGES - 1; stage++) {
        if (stage * DEPTH < L) {
            A.fill(tiles + stage * 2 * TILE_ELEMENTS, stage * DEPTH);
            B.fill(tiles + (stage * 2 + 1) * TILE_ELEMENTS, stage * DEPTH);
        }
        copy_async_commit();
    }
    u32 stage = 0;
    for (u32 l = 0; l < L; l += DEPTH) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        // Fills the stage that all have just left.
        u32 ahead = l + (STAGES - 1) * DEPTH, free = stage == 0 ? STAGES - 1 : stage - 1;
        if (ahead < L) {
            A.fill(tiles + free * 2 * TILE_ELEMENTS, ahead);
            B.fill(tiles + (free * 2 + 1) * TILE_ELEMENTS, ahead);
        }
        copy_async_commit();
        const bf16 *a_tile = tiles + stage * 2 * TILE_ELEMENTS, *b_tile = a_tile + TILE_ELEMENTS;
#pragma unroll
        for (u32 d = 0; d < DEPTH; d += 16) {
            u32 x[4][4], y[2][4];
#pragma unroll
            for (u32 r = 0; r < 4; r++) A.template fragment<false>(x[r], a_tile, row + r * 16, d);
#pragma unroll
            for (u32 c = 0; c < 2; c++) B.template fragment<true>(y[c], b_tile, col + c * 16, d);
#pragma unroll
            for (u32 r = 0; r < 4; r++)
#pragma unroll
                for (u32 c = 0; c < 4; c++) {
                    u32 two[2] = {y[c / 2][c % 2 * 2], y[c / 2][c % 2 * 2 + 1]};
                    mma_bf16(sums[r][c], x[r], two);
                }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    copy_async_wait<0>();
    bool pairs = J % 2 == 0 && to.stride % 2 == 0 && (u64)to.out % (2 * sizeof(T)) == 0;
#pragma unroll
    for (u32 r = 0; r < 4; r++)
#pragma unroll
        for (u32 c = 0; c < 4; c++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                u32 at_i = i + row + r * 16 + half * 8 + lane / 4, at_j = j + col + c * 8 + lane % 4 * 2;
                u64 at = (u64)at_i * to.stride + at_j;
                float first = sums[r][c][half * 2], second = sums[r][c][half * 2 + 1];
                if (at_i >= I || at_j >= J || !to.of.has(at_i)) continue;
                if (pairs) {
                    store_pair(to.out + at, to.value(first, at, at_j), to.value(second, at + 1, at_j + 1));
                } else {
                    to.out[at] = from_f32<T>(to.value(first, at, at_j));
                    if (at_j + 1 < J) to.out[at + 1] = from_f32<T>(to.value(second, at + 1, at_j + 1));
                }
            }
}

#define PRODUCTS_BF16(T, types)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
    forward_##types(const bf16* __restrict__ x, u32 x_stride, const bf16* __restrict__ w,                             \
                    const bf16* __restrict__ bias, T* out, u32 out_stride, u32 m, u32 n, u32 k, float scale,          \
                    u32 add, OF_SLOT) {                                                                               \
        begin();                                                                                                      \
        extern __shared__ __align__(16) u8 dynamic_shared[];                                                          \
        const RowsOfSlot of = ROWS_OF_SLOT;                                                                           \
        const Target<T, bf16> to = {out, out_stride, bias, of.scale(scale), add != 0, false, of};                     \
        product<true, true>(dynamic_shared, x, x_stride, w, k, to, m, n, k);                                          \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
    backward_x_##types(const bf16* __restrict__ dy, u32 dy_stride, const bf16* __restrict__ w, T* out,                \
                       u32 out_stride, u32 m, u32 n, u32 k, float scale, u32 add) {                                   \
        begin();                                                                                                      \
        extern __shared__ __align__(16) u8 dynamic_shared[];                                                          \
        product<true, false>(dynamic_shared, dy, dy_stride, w, k,                                                     \
                             Target<T, bf16>{out, out_stride, nullptr, scale, add != 0, false}, m, k, n);             \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
    backward_w_##types(const bf16* __restrict__ dy, u32 dy_stride, const bf16* __restrict__ x, u32 x_stride,          \
                       T* grad, u32 m, u32 n, u32 k) {                                                                \
        begin();                                                                                                      \
        extern __shared__ __align__(16) u8 dynamic_shared[];                                                          \
        product<false, false>(dynamic_shared, dy, dy_stride, x, x_stride,                                             \
                              Target<T, bf16>{grad, k, nullptr, 1.0f, true, true}, n, k, m);                          \
    }
PRODUCTS_BF16(float, bf16_f32)
PRODUCTS_BF16(bf16, bf16_bf16)
