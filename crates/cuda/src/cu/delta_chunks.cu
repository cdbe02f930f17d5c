// The gradient of the gated delta rule, step 2: gradients of q, k, v, g and beta, by chunks of 64 rows, from the states
// and gradients of states that the scans left at the chunk's ends.
//
// With u = beta r, du = `d_rest`, w = beta du, G the sum of g over a chunk's rows up to a row, S the state that it
// begins with, D the gradient of the state that it leaves, and sums over rows s of the chunk:
//
//   dq[t] = e^G[t] S do[t] + sum over s <= t of e^(G[t] - G[s]) (u[s] . do[t]) k[s]
//   dk[t] = e^(G[end] - G[t]) D u[t] + sum over s >= t of e^(G[s] - G[t]) (u[t] . do[s]) q[s]
//           - e^G[t] S w[t] - sum over s != t of e^-|G[t] - G[s]| (u[first of both] . w[last of both]) k[s]
//   dv = w,   dbeta = du . r,   dg[t] = <D, S after the chunk> + sum over s >= t of (q[s] . dq[s] - v[s] . dv[s])
//
// Products are of bf16 in tensor cores: operands are split into parts, each the bf16 of what is left, and products of
// parts are added from the smallest. Two parts of bf16 inputs leave 2^-17 of an operand, three of f32 ones 2^-25.

#define CHUNK_THREADS 256
/// Row elements in shared memory at a time, and their stride there: 16 bytes more keep eight rows in different banks.
#define SLICE 32
#define SLICE_STRIDE (SLICE + 8)
/// Stride of the matrices between rows.
#define PAIR_STRIDE (STATE_CHUNK + 8)
#define HEAD_MAX 128

template <class T> struct Parts;
template <> struct Parts<float> {
    static constexpr u32 OF_F32 = 3, OF_T = 3;
};
template <> struct Parts<bf16> {
    static constexpr u32 OF_F32 = 2, OF_T = 1;
};

template <class T>
struct ChunkArgs {
    const T* qkv;
    const float* gates;
    const u32 *places, *segments;
    const float *states, *rest, *d_rest, *d_states;
    const T* dout;
    float *d_qkv, *d_gates;
    DeltaHeads heads;
    u32 rows, segments_count, places_count;
};

/// Below it e^g is 0, as the CPU's twin has it.
#define UNDERFLOW -104.0f

/// The chunk of a block.
struct Chunk {
    u32 row, rows, place;
    /// True if the state before it is zero.
    bool begins;
};

/// The chunk of a slot: chunks of the segments, one after the other. No rows where there are fewer.
__device__ __forceinline__ Chunk chunk_of(const u32* __restrict__ segments, const u32* __restrict__ places, u32 slot, u32 rows, u32 count,
                                          u32 places_count) {
    const u32 lane = threadIdx.x % WARP;
    for (u32 from = 0; from < count; from += WARP) {
        Segment is = {};
        if (from + lane < count) is = segment_at(segments, from + lane, rows);
        const u32 chunks = tiles_of(is.rows, STATE_CHUNK);
        u32 end = chunks;
#pragma unroll
        for (u32 step = 1; step < WARP; step <<= 1) {
            const u32 below = __shfl_up_sync(ALL_LANES, end, step);
            if (lane >= step) end += below;
        }
        const u32 has = __ballot_sync(ALL_LANES, slot < end);
        if (has) {
            const u32 owner = __ffs(has) - 1, c = slot - __shfl_sync(ALL_LANES, end - chunks, owner);
            const u32 first = __shfl_sync(ALL_LANES, is.first, owner), n = __shfl_sync(ALL_LANES, is.rows, owner);
            const u32 before = places[(from + owner) * 2], place = places[(from + owner) * 2 + 1];
            if (place == NO_STATE || !index_ok(BAD_ROW, place + c + 1, places_count)) break;
            return {first + c * STATE_CHUNK, min(n - c * STATE_CHUNK, (u32)STATE_CHUNK), place + c, c == 0 && before == NO_STATE};
        }
        slot -= __shfl_sync(ALL_LANES, end, WARP - 1);
    }
    return {0, 0, 0, false};
}

/// Splits four numbers into parts, each at `at` of its own matrix.
template <u32 PARTS>
__device__ __forceinline__ void split(float (&x)[4], u16* at, u32 matrix) {
#pragma unroll
    for (u32 p = 0; p < PARTS; p++) {
        const u32 low = pack_bf16(x[0], x[1]), high = pack_bf16(x[2], x[3]);
        *(uint2*)(at + p * matrix) = make_uint2(low, high);
        if (p + 1 == PARTS) break;
        x[0] = x[0] - low_f32(low), x[1] = x[1] - high_f32(low), x[2] = x[2] - low_f32(high), x[3] = x[3] - high_f32(high);
    }
}

/// The A operand: rows `row` to `row + 16`, elements `k` to `k + 16` of a row-major matrix.
__device__ __forceinline__ void rows_of(u32 (&a)[4], const u16* x, u32 stride, u32 row, u32 k) {
    const u32 lane = threadIdx.x % WARP;
    ldmatrix_x4(a, x + (row + lane % 16) * stride + k + lane / 16 * 8);
}
/// The A operand of `rows_of`, from a column-major matrix.
__device__ __forceinline__ void rows_across(u32 (&a)[4], const u16* x, u32 stride, u32 row, u32 k) {
    const u32 lane = threadIdx.x % WARP;
    ldmatrix_x4_trans(a, x + (k + lane % 8 + lane / 16 * 8) * stride + row + lane / 8 % 2 * 8);
}
/// The B operand of a column-major matrix, 16 columns: the first eight in b[0..2], the others in b[2..4].
__device__ __forceinline__ void columns_of(u32 (&b)[4], const u16* x, u32 stride, u32 column, u32 k) {
    const u32 lane = threadIdx.x % WARP;
    ldmatrix_x4(b, x + (column + lane % 8 + lane / 16 * 8) * stride + k + lane / 8 % 2 * 8);
}
/// The B operand of `columns_of`, from a row-major matrix.
__device__ __forceinline__ void columns_across(u32 (&b)[4], const u16* x, u32 stride, u32 column, u32 k) {
    const u32 lane = threadIdx.x % WARP;
    ldmatrix_x4_trans(b, x + (k + lane % 16) * stride + column + lane / 16 * 8);
}

/// d += a b over 16 columns, for the parts of both whose product is not below what is left out.
template <u32 NA, u32 NB>
__device__ __forceinline__ void multiply(float (&d0)[4], float (&d1)[4], const u32 (&a)[NA][4], const u32 (&b)[NB][4]) {
    constexpr u32 MOST = NA > NB ? NA : NB;
#pragma unroll
    for (u32 sum = MOST; sum-- > 0;) {
#pragma unroll
        for (u32 i = 0; i < NA; i++) {
#pragma unroll
            for (u32 j = 0; j < NB; j++) {
                if (i + j != sum) continue;
                const u32 first[2] = {b[j][0], b[j][1]}, second[2] = {b[j][2], b[j][3]};
                mma_bf16(d0, a[i], first);
                mma_bf16(d1, a[i], second);
            }
        }
    }
}

/// d += A B^T over a slice: 16 rows of A by 16 N columns, both with a row's elements one after the other.
template <u32 NA, u32 NB, u32 N>
__device__ __forceinline__ void multiply_slice(float (&d)[2 * N][4], const u16* a, u32 a_matrix, u32 row, const u16* b, u32 b_matrix,
                                               u32 column) {
#pragma unroll
    for (u32 k = 0; k < SLICE; k += 16) {
        u32 of_a[NA][4], of_b[NB][4];
#pragma unroll
        for (u32 p = 0; p < NA; p++) rows_of(of_a[p], a + p * a_matrix, SLICE_STRIDE, row, k);
#pragma unroll
        for (u32 n = 0; n < N; n++) {
#pragma unroll
            for (u32 p = 0; p < NB; p++) columns_of(of_b[p], b + p * b_matrix, SLICE_STRIDE, column + n * 16, k);
            multiply(d[2 * n], d[2 * n + 1], of_a, of_b);
        }
    }
}

/// Numbers of rows, or of parts of the chunk. `sum`: the sum of g up to a row, with its rounding error apart:
/// differences of sums of some thousands are as exact as those of small ones.
struct ChunkRows {
    float2 sum[STATE_CHUNK];
    float beta[STATE_CHUNK], d_beta[STATE_CHUNK], v_dv[STATE_CHUNK], q_dq[2][STATE_CHUNK], parts[CHUNK_THREADS / WARP];
};

/// Elements of matrices of slices with 64 and 128 rows, and of those between rows.
#define ROWS_MATRIX (STATE_CHUNK * SLICE_STRIDE)
#define STATE_MATRIX (HEAD_MAX * SLICE_STRIDE)
#define PAIR_MATRIX (STATE_CHUNK * PAIR_STRIDE)

/// The work of a block for one value head.
template <class T>
struct ChunkHead {
    static constexpr u32 F = Parts<T>::OF_F32, E = Parts<T>::OF_T;
    const ChunkArgs<T>& a;
    ChunkRows& of;
    u16* shared;
    Chunk chunk;
    u32 head;
    // dq, dk: rows 16 (warp / 2) + lane / 4 and 8 further, columns 64 (warp % 2) + 8 n + 2 (lane % 4) and 1 further.
    float dq[8][4], dk[8][4];

    __device__ __forceinline__ u32 warp() const { return threadIdx.x / WARP; }
    __device__ __forceinline__ u32 lane() const { return threadIdx.x % WARP; }
    __device__ __forceinline__ u32 row() const { return warp() / 2 * 16; }

    /// Four elements of a row of the chunk, zeros beyond its end.
    template <class X>
    __device__ __forceinline__ void take(const X* x, u64 stride, u32 i, u32 c, u32 columns, float (&to)[4]) const {
        to[0] = to[1] = to[2] = to[3] = 0.0f;
        if (i < chunk.rows && c < columns) load4(x + (u64)(chunk.row + i) * stride + c, to);
    }

    __device__ __forceinline__ void sum_gates() {
        const DeltaHeads& h = a.heads;
        if (warp() == 0) {
            float g[2], beta[2];
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                const u32 i = lane() * 2 + n;
                const float* gate = a.gates + (u64)(chunk.row + i) * 2 * h.value_heads + head;
                g[n] = i < chunk.rows ? gate[0] : 0.0f;
                beta[n] = i < chunk.rows ? gate[h.value_heads] : 0.0f;
            }
            const double end = warp_scan((double)g[0] + (double)g[1]), sums[2] = {end - (double)g[1], end};
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                const float most = (float)sums[n];
                of.sum[lane() * 2 + n] = make_float2(most, (float)(sums[n] - (double)most));
            }
            of.beta[lane() * 2] = beta[0], of.beta[lane() * 2 + 1] = beta[1];
        }
        __syncthreads();
    }

    /// e to the sum of g after row s, up to row t.
    __device__ __forceinline__ float fade(u32 s, u32 t) const {
        const float e = exp_f32(of.sum[t].x - of.sum[s].x);
        return fma(e, of.sum[t].y - of.sum[s].y, e);
    }
    /// e to the sum of g up to row t.
    __device__ __forceinline__ float fade(u32 t) const {
        const float e = exp_f32(of.sum[t].x);
        return fma(e, of.sum[t].y, e);
    }

    /// dk = D u, products of pairs of rows, and what needs u, w and v alone.
    __device__ __forceinline__ void from_gradient() {
        const DeltaHeads& h = a.heads;
        const u64 size = (u64)h.value_heads * h.key_dim * h.value_dim, at = (u64)head * h.key_dim * h.value_dim;
        const float *after = a.states + (chunk.place + 1) * size + at, *d_after = a.d_states + (chunk.place + 1) * size + at;
        u16 *u = shared, *w = u + F * ROWS_MATRIX, *d = w + F * ROWS_MATRIX, *state = d + E * ROWS_MATRIX;
        float with_do[4][4] = {}, with_w[4][4] = {}, d_beta[2] = {}, v_dv[2] = {}, dot = 0.0f;
        for (u32 v = 0; v < h.value_dim; v += SLICE) {
            __syncthreads();
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                const u32 i = threadIdx.x / 8 + n * 32, c = threadIdx.x % 8 * 4, column = head * h.value_dim + v + c;
                const u32 left = v + c < h.value_dim ? column + 4 : 0;
                float r[4], du[4], x[4], y[4];
                take(a.rest, h.value_width(), i, column, left, r);
                take(a.d_rest, h.value_width(), i, column, left, du);
                take(a.dout, h.value_width(), i, column, left, x);
                take(a.qkv + 2 * h.key_width(), h.conv_width(), i, column, left, y);
                split<E>(x, d + i * SLICE_STRIDE + c, ROWS_MATRIX);
                const float beta = of.beta[i];
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    d_beta[n] = fma(du[e], r[e], d_beta[n]);
                    r[e] = beta * r[e];
                    du[e] = beta * du[e];
                    v_dv[n] = fma(y[e], du[e], v_dv[n]);
                }
                if (i < chunk.rows && left) store4(a.d_qkv + (u64)(chunk.row + i) * h.conv_width() + 2 * h.key_width() + column, du);
                split<F>(r, u + i * SLICE_STRIDE + c, ROWS_MATRIX);
                split<F>(du, w + i * SLICE_STRIDE + c, ROWS_MATRIX);
            }
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                const u32 i = threadIdx.x / 8 + n * 32, c = threadIdx.x % 8 * 4;
                float x[4] = {}, y[4] = {};
                if (i < h.key_dim && v + c < h.value_dim) {
                    load4(d_after + (u64)i * h.value_dim + v + c, x);
                    load4(after + (u64)i * h.value_dim + v + c, y);
                }
#pragma unroll
                for (u32 e = 0; e < 4; e++) dot = fma(x[e], y[e], dot);
                split<F>(x, state + i * SLICE_STRIDE + c, STATE_MATRIX);
            }
            __syncthreads();
            multiply_slice<F, F, 4>(dk, u, ROWS_MATRIX, row(), state, STATE_MATRIX, warp() % 2 * 64);
            multiply_slice<F, E, 2>(with_do, u, ROWS_MATRIX, row(), d, ROWS_MATRIX, warp() % 2 * 32);
            multiply_slice<F, F, 2>(with_w, u, ROWS_MATRIX, row(), w, ROWS_MATRIX, warp() % 2 * 32);
        }
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
#pragma unroll
            for (u32 step = 1; step < 8; step <<= 1) {
                d_beta[n] = d_beta[n] + __shfl_xor_sync(ALL_LANES, d_beta[n], step);
                v_dv[n] = v_dv[n] + __shfl_xor_sync(ALL_LANES, v_dv[n], step);
            }
            if (threadIdx.x % 8 == 0) {
                of.d_beta[threadIdx.x / 8 + n * 32] = d_beta[n];
                of.v_dv[threadIdx.x / 8 + n * 32] = v_dv[n];
            }
        }
        dot = warp_sum(dot);
        if (lane() == 0) of.parts[warp()] = dot;
        __syncthreads();
        keep_pairs(with_do, with_w);
    }

    /// Keeps e^(G[t] - G[s]) (u[s] . do[t]) for s <= t at [s][t], and minus the other product, s < t, at both places.
    __device__ __forceinline__ void keep_pairs(const float (&with_do)[4][4], const float (&with_w)[4][4]) {
        u16 *first = shared, *second = shared + F * PAIR_MATRIX;
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                const u32 s = row() + lane() / 4 + e / 2 * 8, t = warp() % 2 * 32 + n * 8 + lane() % 4 * 2 + e % 2;
                const float by = s <= t ? fade(s, t) : 0.0f;
                float x = s <= t ? by * with_do[n][e] : 0.0f, y = s < t ? -by * with_w[n][e] : 0.0f;
#pragma unroll
                for (u32 p = 0; p < F; p++) {
                    const u32 both = pack_bf16(x, y);
                    x = x - low_f32(both), y = y - high_f32(both);
                    first[p * PAIR_MATRIX + s * PAIR_STRIDE + t] = (u16)both;
                    if (s <= t) {
                        second[p * PAIR_MATRIX + s * PAIR_STRIDE + t] = (u16)(both >> 16);
                        second[p * PAIR_MATRIX + t * PAIR_STRIDE + s] = (u16)(both >> 16);
                    }
                }
            }
        }
    }

    /// dk = e^(G[end] - G[t]) dk, then products of pairs with q and k are added to dq and dk.
    __device__ __forceinline__ void from_pairs() {
        const DeltaHeads& h = a.heads;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const float left = fade(row() + lane() / 4 + half * 8, STATE_CHUNK - 1);
#pragma unroll
            for (u32 n = 0; n < 8; n++) dk[n][half * 2] = left * dk[n][half * 2], dk[n][half * 2 + 1] = left * dk[n][half * 2 + 1];
        }
        const u16 *first = shared, *second = shared + F * PAIR_MATRIX;
        u16 *q = shared + 2 * F * PAIR_MATRIX, *k = q + E * ROWS_MATRIX;
        const T *of_q = a.qkv + h.key_of(head) * h.key_dim, *of_k = of_q + h.key_width();
        // A slice has 16 columns of the first 64, and 16 of the others: each warp takes its own.
#pragma unroll
        for (u32 slice = 0; slice < 4; slice++) {
            __syncthreads();
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                const u32 i = threadIdx.x / 8 + n * 32, c = threadIdx.x % 8 * 4, column = c / 16 * 64 + slice * 16 + c % 16;
                float x[4], y[4];
                take(of_q, h.conv_width(), i, column, h.key_dim, x);
                take(of_k, h.conv_width(), i, column, h.key_dim, y);
                split<E>(x, q + i * SLICE_STRIDE + c, ROWS_MATRIX);
                split<E>(y, k + i * SLICE_STRIDE + c, ROWS_MATRIX);
            }
            __syncthreads();
#pragma unroll
            for (u32 s = 0; s < STATE_CHUNK; s += 16) {
                u32 x[F][4], of_q[E][4], of_k[E][4];
                const u32 column = warp() % 2 * 16;
#pragma unroll
                for (u32 p = 0; p < E; p++) {
                    columns_across(of_q[p], q + p * ROWS_MATRIX, SLICE_STRIDE, column, s);
                    columns_across(of_k[p], k + p * ROWS_MATRIX, SLICE_STRIDE, column, s);
                }
#pragma unroll
                for (u32 p = 0; p < F; p++) rows_across(x[p], first + p * PAIR_MATRIX, PAIR_STRIDE, row(), s);
                multiply(dq[slice * 2], dq[slice * 2 + 1], x, of_k);
#pragma unroll
                for (u32 p = 0; p < F; p++) rows_of(x[p], first + p * PAIR_MATRIX, PAIR_STRIDE, row(), s);
                multiply(dk[slice * 2], dk[slice * 2 + 1], x, of_q);
#pragma unroll
                for (u32 p = 0; p < F; p++) rows_of(x[p], second + p * PAIR_MATRIX, PAIR_STRIDE, row(), s);
                multiply(dk[slice * 2], dk[slice * 2 + 1], x, of_k);
            }
        }
    }

    /// dq += e^G S do, dk -= e^G S w.
    __device__ __forceinline__ void from_state() {
        const DeltaHeads& h = a.heads;
        const float* before = a.states + (u64)chunk.place * h.value_heads * h.key_dim * h.value_dim + (u64)head * h.key_dim * h.value_dim;
        u16 *w = shared, *d = w + F * ROWS_MATRIX, *state = d + F * ROWS_MATRIX;
        for (u32 v = 0; v < h.value_dim; v += SLICE) {
            __syncthreads();
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                const u32 i = threadIdx.x / 8 + n * 32, c = threadIdx.x % 8 * 4, column = head * h.value_dim + v + c;
                const u32 left = v + c < h.value_dim ? column + 4 : 0;
                float x[4], du[4];
                take(a.dout, h.value_width(), i, column, left, x);
                take(a.d_rest, h.value_width(), i, column, left, du);
                const float by = fade(i), beta = -of.beta[i] * by;
#pragma unroll
                for (u32 e = 0; e < 4; e++) x[e] = by * x[e], du[e] = beta * du[e];
                split<F>(x, d + i * SLICE_STRIDE + c, ROWS_MATRIX);
                split<F>(du, w + i * SLICE_STRIDE + c, ROWS_MATRIX);
            }
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                const u32 i = threadIdx.x / 8 + n * 32, c = threadIdx.x % 8 * 4;
                float x[4] = {};
                if (i < h.key_dim && v + c < h.value_dim) load4(before + (u64)i * h.value_dim + v + c, x);
                split<F>(x, state + i * SLICE_STRIDE + c, STATE_MATRIX);
            }
            __syncthreads();
            multiply_slice<F, F, 4>(dq, d, ROWS_MATRIX, row(), state, STATE_MATRIX, warp() % 2 * 64);
            multiply_slice<F, F, 4>(dk, w, ROWS_MATRIX, row(), state, STATE_MATRIX, warp() % 2 * 64);
        }
    }

    /// Writes dq and dk, or adds them to those of earlier value heads that share them, and writes gradients of gates.
    __device__ __forceinline__ void finish(bool is_first) {
        const DeltaHeads& h = a.heads;
        const u32 first = h.key_of(head) * h.key_dim;
        float dots[2] = {};
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 i = row() + lane() / 4 + half * 8, c = warp() % 2 * 64 + n * 8 + lane() % 4 * 2;
                if (i >= chunk.rows || c >= h.key_dim) continue;
                const u64 at = (u64)(chunk.row + i) * h.conv_width() + first + c;
                float2 *to_q = (float2*)(a.d_qkv + at), *to_k = (float2*)(a.d_qkv + at + h.key_width());
                float2 x = make_float2(dq[n][half * 2], dq[n][half * 2 + 1]), y = make_float2(dk[n][half * 2], dk[n][half * 2 + 1]);
                dots[half] = fma(to_f32(a.qkv[at]), x.x, dots[half]);
                dots[half] = fma(to_f32(a.qkv[at + 1]), x.y, dots[half]);
                if (!is_first) {
                    const float2 old = *to_q, old_k = *to_k;
                    x.x = old.x + x.x, x.y = old.y + x.y, y.x = old_k.x + y.x, y.y = old_k.y + y.y;
                }
                *to_q = x, *to_k = y;
            }
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            dots[half] = dots[half] + __shfl_xor_sync(ALL_LANES, dots[half], 1);
            dots[half] = dots[half] + __shfl_xor_sync(ALL_LANES, dots[half], 2);
            if (lane() % 4 == 0) of.q_dq[warp() % 2][row() + lane() / 4 + half * 8] = dots[half];
        }
        __syncthreads();
        if (warp() > 0) return;
        float dot = 0.0f, x[2];
#pragma unroll
        for (u32 i = 0; i < CHUNK_THREADS / WARP; i++) dot = dot + of.parts[i];
#pragma unroll
        for (u32 n = 0; n < 2; n++) x[n] = of.q_dq[0][lane() * 2 + n] + of.q_dq[1][lane() * 2 + n] - of.v_dv[lane() * 2 + n];
        float end = x[0] + x[1];
#pragma unroll
        for (u32 step = 1; step < WARP; step <<= 1) {
            const float above = __shfl_down_sync(ALL_LANES, end, step);
            if (lane() + step < WARP) end = end + above;
        }
        const float above = __shfl_down_sync(ALL_LANES, end, 1), dg[2] = {dot + end, dot + ((lane() + 1 < WARP ? above : 0.0f) + x[1])};
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            const u32 i = lane() * 2 + n;
            if (i >= chunk.rows) continue;
            const u64 at = (u64)(chunk.row + i) * 2 * h.value_heads + head;
            float* to = a.d_gates + at;
            // Where e^g is 0, or what it decays, nothing depends on it: not even the rounding error of the sum, which
            // the gradient of the decay multiplies by g.
            to[0] = a.gates[at] < UNDERFLOW || (i == 0 && chunk.begins) ? 0.0f : dg[n];
            to[h.value_heads] = of.d_beta[i];
        }
    }

    __device__ __forceinline__ void run(bool is_first) {
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) dq[n][e] = dk[n][e] = 0.0f;
        }
        sum_gates();
        from_gradient();
        from_pairs();
        from_state();
        finish(is_first);
        __syncthreads();
    }
};

/// grid: (G, chunks at most). Value heads that share q and k are done one after the other.
template <class T>
__device__ __forceinline__ void delta_chunks(const ChunkArgs<T>& a, u16* shared) {
    __shared__ ChunkRows of;
    const Chunk chunk = chunk_of(a.segments, a.places, blockIdx.y, a.rows, a.segments_count, a.places_count);
    if (chunk.rows == 0) return;
    const u32 share = a.heads.value_heads / a.heads.key_heads;
    for (u32 i = 0; i < share; i++) {
        ChunkHead<T> one = {a, of, shared, chunk, blockIdx.x * share + i, {}, {}};
        one.run(i == 0);
    }
}

#define DELTA_CHUNKS(T, BLOCKS)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(CHUNK_THREADS, BLOCKS)                                                                    \
        delta_chunks_##T(const T* qkv, const float* gates, const u32* places, const u32* segments, const float* states, const float* rest, \
                         const float* d_rest, const float* d_states, const T* dout, float* d_qkv, float* d_gates, u32 key_heads,           \
                         u32 value_heads, u32 key_dim, u32 value_dim, u32 rows, u32 segments_count, u32 places_count) {                    \
        begin();                                                                                                                           \
        extern __shared__ __align__(16) u16 shared[];                                                                                      \
        const DeltaHeads heads = {key_heads, value_heads, key_dim, value_dim};                                                             \
        delta_chunks<T>({qkv, gates, places, segments, states, rest, d_rest, d_states, dout, d_qkv, d_gates, heads, rows, segments_count,  \
                         places_count},                                                                                                    \
                        shared);                                                                                                           \
    }
DELTA_CHUNKS(float, 1)
DELTA_CHUNKS(bf16, 2)
