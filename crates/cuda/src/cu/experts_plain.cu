// Products of experts in f32, and those of their adapters, possibly of bf16: each sum is one ascending chain of fused
// multiply-adds in f32. A pair's bits depend on nothing else. Operands and outputs may be columns of wider rows.
//
// C[i, j] = sum over l of A(i, l) B(j, l). Operands are by line or depth, as in sgemm.cu; `row_of` finds pairs' rows.

/// Rows and columns of a tile of C: 256 threads with 4 x 4 each.
#define TILE 64
#define PLAIN_DEPTH 16
/// Floats between depths in shared memory: 16-byte aligned, and two threads of a warp on a bank at most.
#define PITCH 68

__device__ __forceinline__ float4 load_four(const float* p) { return *(const float4*)p; }
__device__ __forceinline__ float4 load_four(const bf16* p) {
    const uint2 x = *(const uint2*)p;
    return make_float4(low_f32(x.x), high_f32(x.x), low_f32(x.y), high_f32(x.y));
}

/// A thread's four elements of an operand's tile: of one line of 16 depths, or of one depth of 64 lines.
template <bool BY_LINE> struct Part {
    u32 line, at;

    __device__ __forceinline__ Part() {
        line = BY_LINE ? threadIdx.x / 4 : threadIdx.x / 16;
        at = BY_LINE ? threadIdx.x % 4 * 4 : threadIdx.x % 16 * 4;
    }
    /// Elements from `col` on of a row of `cols`; zeros beyond it, and for no row.
    template <class E> __device__ __forceinline__ float4 load(const E* row, u32 col, u32 cols) const {
        float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (!row || col >= cols) return out;
        const E* p = row + col;
        if ((u64)p % (4 * sizeof(E)) == 0 && col + 4 <= cols) return load_four(p);
        out.x = to_f32(p[0]);
        if (col + 1 < cols) out.y = to_f32(p[1]);
        if (col + 2 < cols) out.z = to_f32(p[2]);
        if (col + 3 < cols) out.w = to_f32(p[3]);
        return out;
    }
    __device__ __forceinline__ void store(float* tile, float4 x) const {
        if (BY_LINE) {
            tile[(at + 0) * PITCH + line] = x.x;
            tile[(at + 1) * PITCH + line] = x.y;
            tile[(at + 2) * PITCH + line] = x.z;
            tile[(at + 3) * PITCH + line] = x.w;
        } else {
            *(float4*)(tile + line * PITCH + at) = x;
        }
    }
};

/// A thread's 4 x 4 sums from (row(), col()) of the tile. `load_a(l)` and `load_b(l)` give depths l to l + 16.
template <bool A_BY_LINE, bool B_BY_LINE> struct PlainSums {
    float of[4][4];

    static __device__ __forceinline__ u32 row() { return threadIdx.x / 16 * 4; }
    static __device__ __forceinline__ u32 col() { return threadIdx.x % 16 * 4; }

    template <class A, class B>
    __device__ __forceinline__ void add(u32 length, const Part<A_BY_LINE>& a, const A& load_a, const Part<B_BY_LINE>& b, const B& load_b) {
        __shared__ __align__(16) float tiles[2][2][PLAIN_DEPTH * PITCH];
        float4 next_a = load_a(0), next_b = load_b(0);
        u32 stage = 0;
        for (u32 l = 0; l < length; l += PLAIN_DEPTH, stage ^= 1) {
            float *a_tile = tiles[stage][0], *b_tile = tiles[stage][1];
            a.store(a_tile, next_a);
            b.store(b_tile, next_b);
            // No thread writes a stage before all have left it: the barrier of the step between comes first.
            __syncthreads();
            next_a = load_a(l + PLAIN_DEPTH);
            next_b = load_b(l + PLAIN_DEPTH);
#pragma unroll
            for (u32 d = 0; d < PLAIN_DEPTH; d++) {
                const float4 x4 = *(const float4*)(a_tile + d * PITCH + row()), y4 = *(const float4*)(b_tile + d * PITCH + col());
                const float x[4] = {x4.x, x4.y, x4.z, x4.w}, y[4] = {y4.x, y4.y, y4.z, y4.w};
#pragma unroll
                for (u32 r = 0; r < 4; r++)
#pragma unroll
                    for (u32 c = 0; c < 4; c++) of[r][c] = fma(x[r], y[c], of[r][c]);
            }
        }
    }
};

/// An operand with rows for pairs: elements from row to row, and the number of pairs of a row, or 0 for one.
struct Stride {
    u32 row, chosen;
};

/// out = scale x W^T of weights [J, L], or BACKWARD scale x W of weights [L, J]; or out +=, the sum rounded once.
/// `each`: elements from one expert's weights to the next.
template <bool BACKWARD, class E, class T>
__device__ __forceinline__ void product(const E* __restrict__ x, Stride of_x, const E* __restrict__ w, u64 each, const u32* __restrict__ pairs,
                                        const u32* __restrict__ starts, T* __restrict__ out, u32 out_row, u32 experts, u32 J, u32 L,
                                        float scale, u32 add) {
    const Tile tile = find_tile<TILE>(starts, experts, blockIdx.x);
    if (tile.rows == 0) return;
    const u32 first = blockIdx.y * TILE;
    const E* own = w + tile.expert * each;
    const Part<true> a;
    const Part<!BACKWARD> b;
    const E* x_row = a.line < tile.rows ? x + (u64)row_of(pairs, tile.first + a.line, of_x.chosen) * of_x.row : nullptr;
    const auto load_a = [&](u32 l) { return a.load(x_row, l + a.at, L); };
    const auto load_b = [&](u32 l) {
        const u32 row = (BACKWARD ? l : first) + b.line, col = (BACKWARD ? first : l) + b.at;
        const u32 rows = BACKWARD ? L : J, cols = BACKWARD ? J : L;
        return b.load(row < rows ? own + (u64)row * cols : nullptr, col, cols);
    };
    PlainSums<true, !BACKWARD> sums = {};
    sums.add(L, a, load_a, b, load_b);
#pragma unroll
    for (u32 r = 0; r < 4; r++)
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            const u32 line = sums.row() + r, col = first + sums.col() + c;
            if (line >= tile.rows || col >= J) continue;
            T* to = out + (u64)(tile.first + line) * out_row + col;
            const float sum = scale * sums.of[r][c];
            *to = from_f32<T>(add ? to_f32(*to) + sum : sum);
        }
}

#define PRODUCT(NAME, BACKWARD, E, e, T, t)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    NAME##_##e##_##t(const E* x, u32 x_row, u32 chosen, const E* w, u64 each, const u32* pairs, const u32* starts, T* out,         \
                     u32 out_row, u32 experts, u32 n, u32 k, float scale, u32 add) {                                               \
        begin();                                                                                                                   \
        product<BACKWARD>(x, Stride{x_row, chosen}, w, each, pairs, starts, out, out_row, experts, BACKWARD ? k : n,               \
                          BACKWARD ? n : k, scale, add);                                                                           \
    }
#define PRODUCTS(E, e, T, t)                                                                                                       \
    PRODUCT(forward, false, E, e, T, t)                                                                                            \
    PRODUCT(backward, true, E, e, T, t)
PRODUCTS(float, float, float, float)
PRODUCTS(bf16, bf16, bf16, bf16)
PRODUCTS(bf16, bf16, float, float)

/// grad = dy^T x over an expert's pairs, ascending, or grad +=, the product rounded first. `each`: elements from one
/// expert's gradient to the next.
template <class E, class T>
__device__ __forceinline__ void gradient(const E* __restrict__ dy, Stride of_dy, const E* __restrict__ x, Stride of_x,
                                         const u32* __restrict__ pairs, const u32* __restrict__ starts, T* __restrict__ grad, u64 each, u32 n,
                                         u32 k, u32 add) {
    const u32 col_tiles = tiles_of(k, TILE), i = blockIdx.x / col_tiles * TILE, j = blockIdx.x % col_tiles * TILE;
    const u32 first = starts[blockIdx.y], end = starts[blockIdx.y + 1];
    if (first == end && add) return;
    const Part<false> part;
    const auto load = [&](const E* from, Stride of, u32 l, u32 col, u32 cols) {
        const u32 place = first + l + part.line;
        return part.load(place < end ? from + (u64)row_of(pairs, place, of.chosen) * of.row : nullptr, col, cols);
    };
    PlainSums<false, false> sums = {};
    sums.add(end - first, part, [&](u32 l) { return load(dy, of_dy, l, i + part.at, n); },
             part, [&](u32 l) { return load(x, of_x, l, j + part.at, k); });
#pragma unroll
    for (u32 r = 0; r < 4; r++)
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            const u32 row = i + sums.row() + r, col = j + sums.col() + c;
            if (row >= n || col >= k) continue;
            T* to = grad + blockIdx.y * each + (u64)row * k + col;
            const float sum = to_f32(from_f32<T>(sums.of[r][c]));
            *to = from_f32<T>(add ? to_f32(*to) + sum : sum);
        }
}

#define GRADIENT(E, e, T, t)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    gradient_##e##_##t(const E* dy, u32 dy_row, u32 dy_chosen, const E* x, u32 x_row, u32 x_chosen, const u32* pairs,              \
                       const u32* starts, T* grad, u64 each, u32 n, u32 k, u32 add) {                                              \
        begin();                                                                                                                   \
        gradient(dy, Stride{dy_row, dy_chosen}, x, Stride{x_row, x_chosen}, pairs, starts, grad, each, n, k, add);                 \
    }
GRADIENT(float, float, float, float)
GRADIENT(float, float, bf16, bf16)
GRADIENT(bf16, bf16, float, float)
GRADIENT(bf16, bf16, bf16, bf16)
