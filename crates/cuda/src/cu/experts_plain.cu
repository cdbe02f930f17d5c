// Products of experts in f32: each sum is one chain of fused multiply-adds in ascending order of what is summed over. Bits of a pair depend
// on nothing else.
//
// C[i, j] = sum over l of A(i, l) B(j, l). Operands are by line or by depth, as in sgemm.cu; rows that have to do with pairs lie wherever
// `row_of` says.

/// Rows and columns of a tile of C: 256 threads with 4 x 4 each.
#define TILE 64
#define PLAIN_DEPTH 16
/// Floats between depths in shared memory: 16-byte aligned, and two threads of a warp on a bank at most.
#define PITCH 68

/// A thread's four elements of an operand's tile: of one line of 16 depths, or of one depth of 64 lines.
template <bool BY_LINE> struct Part {
    u32 line, at;

    __device__ __forceinline__ Part() {
        line = BY_LINE ? threadIdx.x / 4 : threadIdx.x / 16;
        at = BY_LINE ? threadIdx.x % 4 * 4 : threadIdx.x % 16 * 4;
    }
    /// Elements from `col` on of a row of `cols`; zeros where there is none, and for no row.
    __device__ __forceinline__ float4 load(const float* row, u32 col, u32 cols) const {
        float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (!row || col >= cols) return out;
        const float* p = row + col;
        if ((u64)p % 16 == 0 && col + 4 <= cols) return *(const float4*)p;
        out.x = p[0];
        if (col + 1 < cols) out.y = p[1];
        if (col + 2 < cols) out.z = p[2];
        if (col + 3 < cols) out.w = p[3];
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

/// A thread's 4 x 4 sums from (row(), col()) of the tile. `load_a(l)` and `load_b(l)` give its parts of depths l to l + 16.
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

/// out = x W^T of weights [J, L], or BACKWARD x W of weights [L, J].
template <bool BACKWARD>
__device__ __forceinline__ void product(const float* __restrict__ x, const float* __restrict__ w, const u32* __restrict__ pairs,
                                        const u32* __restrict__ starts, float* __restrict__ out, u32 experts, u32 chosen, u32 J, u32 L) {
    const Tile tile = find_tile<TILE>(starts, experts, blockIdx.x);
    if (tile.rows == 0) return;
    const u32 first = blockIdx.y * TILE;
    const float* own = w + (u64)tile.expert * J * L;
    const Part<true> a;
    const Part<!BACKWARD> b;
    const float* x_row = a.line < tile.rows ? x + (u64)row_of(pairs, tile.first + a.line, chosen) * L : nullptr;
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
            if (line < tile.rows && col < J) out[(u64)(tile.first + line) * J + col] = sums.of[r][c];
        }
}

#define PRODUCT(NAME, BACKWARD)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    NAME(const float* x, const float* w, const u32* pairs, const u32* starts, float* out, u32 experts, u32 chosen, u32 n, u32 k) { \
        begin();                                                                                                                   \
        product<BACKWARD>(x, w, pairs, starts, out, experts, chosen, BACKWARD ? k : n, BACKWARD ? n : k);                          \
    }
PRODUCT(forward, false)
PRODUCT(backward, true)

/// grad = dy^T x over an expert's pairs, ascending, or grad +=, the product rounded first. 0 of `chosen`: a row for each pair.
template <class T>
__device__ __forceinline__ void gradient(const float* __restrict__ dy, u32 dy_chosen, const float* __restrict__ x, u32 x_chosen,
                                         const u32* __restrict__ pairs, const u32* __restrict__ starts, T* __restrict__ grad, u32 n, u32 k,
                                         u32 add) {
    const u32 col_tiles = tiles_of(k, TILE), i = blockIdx.x / col_tiles * TILE, j = blockIdx.x % col_tiles * TILE;
    const u32 first = starts[blockIdx.y], end = starts[blockIdx.y + 1];
    if (first == end && add) return;
    const Part<false> part;
    const auto load = [&](const float* from, u32 chosen, u32 l, u32 col, u32 cols) {
        const u32 place = first + l + part.line;
        return part.load(place < end ? from + (u64)row_of(pairs, place, chosen) * cols : nullptr, col, cols);
    };
    PlainSums<false, false> sums = {};
    sums.add(end - first, part, [&](u32 l) { return load(dy, dy_chosen, l, i + part.at, n); },
             part, [&](u32 l) { return load(x, x_chosen, l, j + part.at, k); });
#pragma unroll
    for (u32 r = 0; r < 4; r++)
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            const u32 row = i + sums.row() + r, col = j + sums.col() + c;
            if (row >= n || col >= k) continue;
            T* to = grad + (u64)blockIdx.y * n * k + (u64)row * k + col;
            const float sum = to_f32(from_f32<T>(sums.of[r][c]));
            *to = from_f32<T>(add ? to_f32(*to) + sum : sum);
        }
}

#define GRADIENT(T, type)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    gradient_##type(const float* dy, u32 dy_chosen, const float* x, u32 x_chosen, const u32* pairs, const u32* starts, T* grad,    \
                    u32 n, u32 k, u32 add) {                                                                                       \
        begin();                                                                                                                   \
        gradient(dy, dy_chosen, x, x_chosen, pairs, starts, grad, n, k, add);                                                      \
    }
GRADIENT(float, float)
GRADIENT(bf16, bf16)
