// Low-rank adapters in bf16: the narrow product that makes u, and the shallow one that is added to a layer's outputs.
//
// Both read 32 summed elements at a time, eight a thread in one load: tensor cores take the elements of a step of 16 in
// any order on which both operands agree. The bits of a row depend on the row alone, neither on M nor on the tile.

/// A thread's load of a line: the operand halves of two steps of 16.
struct Eight {
    u32 x[4];
};

__device__ __forceinline__ Eight load_eight(const bf16* p, bool inside) {
    Eight out = {{0, 0, 0, 0}};
    if (inside) *(uint4*)out.x = *(const uint4*)p;
    return out;
}

/// d += lines `a` (rows g and g + 8) times line `b`, over 32 elements.
__device__ __forceinline__ void mma_32(float (&d)[4], const Eight& low, const Eight& high, const Eight& b) {
#pragma unroll
    for (u32 half = 0; half < 4; half += 2) {
        u32 a[4] = {low.x[half], high.x[half], low.x[half + 1], high.x[half + 1]};
        u32 c[2] = {b.x[half], b.x[half + 1]};
        mma_bf16(d, a, c);
    }
}

// ---- u = scale x A^T ------------------------------------------------------------------------------------------------

#define DOWN_WARPS 16
#define DOWN_COLS 32

/// A block has TILES x 16 rows and 32 columns. Its warps take steps of 32 in turn, AHEAD at once, and add in order.
template <u32 TILES, u32 AHEAD>
__device__ __forceinline__ void down(const bf16* x, const bf16* a, bf16* u, u32 m, u32 n, u32 k, float own_scale,
                                     RowsOfSlot of) {
    const float scale = of.scale(own_scale);
    __shared__ float parts[DOWN_WARPS][16][DOWN_COLS + 1];
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    u32 row = blockIdx.y * 16 * TILES, col = blockIdx.x * DOWN_COLS;
    float sums[TILES][4][4] = {};
    for (u32 first = warp * 32; first < k; first += AHEAD * DOWN_WARPS * 32) {
        Eight b[AHEAD][4], low[AHEAD][TILES], high[AHEAD][TILES];
#pragma unroll
        for (u32 s = 0; s < AHEAD; s++) {
            u32 at = first + s * DOWN_WARPS * 32 + t * 8;
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                u32 line = col + j * 8 + g;
                b[s][j] = load_eight(a + (u64)line * k + at, at < k && line < n);
            }
#pragma unroll
            for (u32 i = 0; i < TILES; i++) {
                u32 line = row + i * 16 + g;
                low[s][i] = load_eight(x + (u64)line * k + at, at < k && line < m);
                high[s][i] = load_eight(x + (u64)(line + 8) * k + at, at < k && line + 8 < m);
            }
        }
        // Steps beyond the end add zeros: nothing, as no sum is a negative zero.
#pragma unroll
        for (u32 s = 0; s < AHEAD; s++)
#pragma unroll
            for (u32 i = 0; i < TILES; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) mma_32(sums[i][j], low[s][i], high[s][i], b[s][j]);
    }
#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 c = 0; c < 4; c++) parts[warp][g + c / 2 * 8][j * 8 + t * 2 + c % 2] = sums[i][j][c];
        __syncthreads();
        for (u32 e = threadIdx.x; e < 16 * DOWN_COLS; e += DOWN_WARPS * WARP) {
            u32 r = e / DOWN_COLS, c = e % DOWN_COLS, line = row + i * 16 + r;
            float sum = 0.0f;
#pragma unroll
            for (u32 w = 0; w < DOWN_WARPS; w++) sum = sum + parts[w][r][c];
            if (line < m && col + c < n && of.has(line)) u[(u64)line * n + col + c] = from_f32<bf16>(scale * sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(512)
adapter_down_few(const bf16* x, const bf16* a, bf16* u, u32 m, u32 n, u32 k, float scale, OF_SLOT) {
    begin();
    down<1, 3>(x, a, u, m, n, k, scale, ROWS_OF_SLOT);
}

extern "C" __global__ void __launch_bounds__(512)
adapter_down_many(const bf16* x, const bf16* a, bf16* u, u32 m, u32 n, u32 k, float scale, OF_SLOT) {
    begin();
    down<2, 1>(x, a, u, m, n, k, scale, ROWS_OF_SLOT);
}

// ---- out += u B^T, and dx += du A -----------------------------------------------------------------------------------

#define ADD_ROWS 64
#define ADD_COLS 64
/// Elements between columns of a tile in shared memory: 16 bytes over a step, so that lines hit different banks.
#define ADD_PITCH 40

/// Runs of outputs, each with its own second operand: a parameter of the kernels.
struct Span {
    const bf16* q; // [n, depth] by line, or [depth, n] by depth
    u32 first;     // the first of its n outputs
    u32 n;
    u32 from;      // the first of its columns of p
};

/// Sixteen neighbours of an output, loaded before they are needed.
template <class T> struct Sixteen {
    uint4 words[16 * sizeof(T) / 16];

    __device__ __forceinline__ void load(const T* from) {
#pragma unroll
        for (u32 i = 0; i < sizeof(words) / 16; i++) words[i] = ((const uint4*)from)[i];
    }

    __device__ __forceinline__ void add(T* to, const float (&x)[16]) const {
        const T* old = (const T*)words;
#pragma unroll
        for (u32 i = 0; i < 16; i += 8) {
            float sum[8];
            load8(old + i, sum);
#pragma unroll
            for (u32 j = 0; j < 8; j++) sum[j] = sum[j] + x[i + j];
            store8(to + i, sum);
        }
    }
};

/// 64 columns of Q from `col`, and 32 of its depth from `l`, as lines of depth; zeros outside.
template <bool BY_DEPTH>
__device__ __forceinline__ void fill(bf16* tile, const Span& span, u32 col, u32 l, u32 depth) {
#pragma unroll
    for (u32 piece = threadIdx.x; piece < ADD_COLS * 4; piece += 128) {
        if (BY_DEPTH) {
            u32 d = l + piece / 8, c = piece % 8 * 8;
            Eight x = load_eight(span.q + (u64)d * span.n + col + c, d < depth && col + c < span.n);
#pragma unroll
            for (u32 e = 0; e < 8; e++) {
                tile[(c + e) * ADD_PITCH + piece / 8].bits = (u16)(x.x[e / 2] >> (e % 2 * 16));
            }
        } else {
            u32 c = piece / 4, d = piece % 4 * 8;
            Eight x = load_eight(span.q + (u64)(col + c) * depth + l + d, l + d < depth && col + c < span.n);
            *(uint4*)(tile + c * ADD_PITCH + d) = *(const uint4*)x.x;
        }
    }
}

/// out = base + scale p Q; `base` may be `out`. A block has 64 rows and 64 columns of a span, a warp 16 rows. `depth`:
/// columns of p that are summed.
template <bool BY_DEPTH, class T>
__device__ __forceinline__ void add(const bf16* p, u32 p_width, const Span& span, u32 tile_of_span, u32 row_tile, const T* base,
                                    T* out, u32 width, u32 m, u32 depth, float scale = 1.0f, RowsOfSlot of = {}) {
    __shared__ __align__(16) bf16 tile[ADD_COLS * ADD_PITCH];
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    u32 row = row_tile * ADD_ROWS + warp * 16 + g, col = tile_of_span * ADD_COLS;
    float sums[8][4] = {};
    // The values that are added to, of rows g and g + 8.
    u32 own = col + t * 16;
    u64 place = (u64)row * width + span.first + own;
    bool whole = own + 16 <= span.n;
    Sixteen<T> old[2];
    if (whole && row < m) old[0].load(base + place);
    if (whole && row + 8 < m) old[1].load(base + place + 8 * (u64)width);
    for (u32 l = 0; l < depth; l += 32) {
        __syncthreads();
        fill<BY_DEPTH>(tile, span, col, l, depth);
        u32 d = l + t * 8;
        const bf16* from = p + (u64)row * p_width + span.from + d;
        Eight low = load_eight(from, row < m && d < depth);
        Eight high = load_eight(from + 8 * (u64)p_width, row + 8 < m && d < depth);
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            // A thread sums sixteen neighbours of a row: column 2 t + b of step j is column 16 t + 2 j + b of the tile.
            Eight b;
            *(uint4*)b.x = *(const uint4*)(tile + (g / 2 * 16 + j * 2 + g % 2) * ADD_PITCH + t * 8);
            mma_32(sums[j], low, high, b);
        }
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        if (row + half * 8 >= m || own >= span.n || !of.has(row + half * 8)) continue;
        float x[16];
#pragma unroll
        for (u32 e = 0; e < 16; e++) x[e] = scale * sums[e / 2][half * 2 + e % 2];
        u64 at = place + half * 8 * (u64)width;
        if (whole) {
            old[half].add(out + at, x);
        } else {
#pragma unroll
            for (u32 e = 0; e < 16; e++) {
                if (own + e < span.n) out[at + e] = from_f32<T>(to_f32(base[at + e]) + x[e]);
            }
        }
    }
}

/// The spans follow each other in the grid's first dimension.
#define ADAPTER_UP(T, type)                                                                                            \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
    adapter_up_##type(const bf16* u, u32 u_width, const bf16* q0, u32 first0, u32 n0, const bf16* q1, u32 first1,      \
                      u32 n1, const bf16* q2, u32 first2, u32 n2, T* out, u32 width, u32 m, u32 rank, OF_SLOT) {                      \
        begin();                                                                                                       \
        u32 block = blockIdx.x, tiles0 = (n0 + ADD_COLS - 1) / ADD_COLS, tiles1 = (n1 + ADD_COLS - 1) / ADD_COLS;      \
        Span span = {q0, first0, n0, 0};                                                                               \
        if (block >= tiles0 + tiles1) {                                                                                \
            block -= tiles0 + tiles1;                                                                                  \
            span = {q2, first2, n2, 2 * rank};                                                                         \
        } else if (block >= tiles0) {                                                                                  \
            block -= tiles0;                                                                                           \
            span = {q1, first1, n1, rank};                                                                             \
        }                                                                                                              \
        add<false, T>(u, u_width, span, block, blockIdx.y, out, out, width, m, rank, 1.0f, ROWS_OF_SLOT);                                  \
    }
ADAPTER_UP(bf16, bf16)
ADAPTER_UP(float, float)

extern "C" __global__ void __launch_bounds__(128)
adapter_dx_bf16(const bf16* du, const bf16* a, bf16* dx, u32 m, u32 sr, u32 k) {
    begin();
    Span span = {a, 0, k, 0};
    add<true, bf16>(du, sr, span, blockIdx.x, blockIdx.y, dx, dx, k, m, sr);
}

/// out = w + scale B_i A_i at the outputs of each block i. `b`: [n, rank]; `a`: [S rank, k]; `w`, `out`: [N, k]. The
/// blocks' rows are along the grid's second dimension.
extern "C" __global__ void __launch_bounds__(128)
adapter_merge_bf16(const bf16* b0, u32 first0, u32 n0, const bf16* b1, u32 first1, u32 n1, const bf16* b2, u32 first2, u32 n2,
                   const bf16* a, const bf16* w, bf16* out, u32 rank, u32 k, float scale) {
    begin();
    u32 tile = blockIdx.y, tiles0 = (n0 + ADD_ROWS - 1) / ADD_ROWS, tiles1 = (n1 + ADD_ROWS - 1) / ADD_ROWS;
    const bf16* b = b0;
    u32 i = 0, first = first0, n = n0;
    if (tile >= tiles0 + tiles1) {
        tile -= tiles0 + tiles1, i = 2, b = b2, first = first2, n = n2;
    } else if (tile >= tiles0) {
        tile -= tiles0, i = 1, b = b1, first = first1, n = n1;
    }
    Span span = {a + (u64)i * rank * k, 0, k, 0};
    add<true, bf16>(b, rank, span, blockIdx.x, tile, w + (u64)first * k, out + (u64)first * k, k, n, rank, scale);
}
