// Rotation of queries and keys by position, head norms, and writes to the KV cache; and their gradients.
//
// Legend: M rows, a query heads, k key-value heads, d head dimension, H = a + 2 k heads of a row of qkv. A value is
// rounded to the storage type once, after its rotation. Keys and values of the cache: [blocks][k][16][d].
//
// A team of d / 16 threads has a head: thread t the elements 8 t .. 8 t + 8 of each half, which are rotated with each
// other. Head dimensions for which d / 16 is no power of two, and heads of which only the first elements are rotated,
// take the plain kernels, a warp a head; those without norms in whole eights take rotation_eights.cu.

/// Largest head dimension, and that of the plain backward kernels for narrower heads.
#define HEAD_DIM_MAX 576
#define NARROW 256


/// Sum over the threads of a team, a power of two of them; every thread gets it.
__device__ __forceinline__ float team_sum(float x, u32 team) {
    for (u32 step = team / 2; step > 0; step >>= 1) x = x + __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

__device__ __forceinline__ float squares(const float (&a)[8], const float (&b)[8]) {
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sums[0] = fma(a[i], a[i], sums[0]);
        sums[1] = fma(b[i], b[i], sums[1]);
    }
    return sums[0] + sums[1];
}

/// Normalises (where there are weights) and rotates; a thread for 16 elements of each head of each row.
template <class T>
__device__ __forceinline__ void rope(const T* __restrict__ qkv, const T* __restrict__ q_norm,
                                     const T* __restrict__ k_norm, float eps, float offset,
                                     const float* __restrict__ table, QScale q_scale,
                                     const u32* __restrict__ positions, const u32* __restrict__ slots, T* q_out,
                                     T* keys, T* values, u32 rows, Shape s, u32 num_positions, u32 num_slots) {
    u32 item = blockIdx.x * blockDim.x + threadIdx.x;
    u32 team = s.d / 16, t = item % team, unit = item / team, row = unit / s.heads(), head = unit - row * s.heads();
    bool inside = row < rows, rotated = head < s.a + s.k;
    float x1[8] = {}, x2[8] = {};
    if (inside) {
        const T* x = qkv + (u64)unit * s.d + t * 8;
        load8(x, x1);
        load8(x + s.d / 2, x2);
    }
    if (q_norm) {  // the same for all threads: the sum needs all lanes
        float r = 1.0f / sqrtf(team_sum(squares(x1, x2), team) / (float)s.d + eps);
        if (inside && rotated) {
            const T* w = (head < s.a ? q_norm : k_norm) + t * 8;
            float w1[8], w2[8];
            load8(w, w1);
            load8(w + s.d / 2, w2);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x1[i] = x1[i] * r * (w1[i] + offset);
                x2[i] = x2[i] * r * (w2[i] + offset);
            }
        }
    }
    if (!inside) return;
    T* to = head_target(s, row, head, slots, num_slots, q_out, keys, values);
    if (!to) return;
    float scale = q_scale.all;
    if (rotated && table) {
        u32 position = positions[row];
        if (!Places::position_ok(position, num_positions)) return;
        scale = q_scale.at(position);
        float cos[8], sin[8];
        Angles(s.places, table, position, row, s.d).load(t * 8, cos, sin);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float a = x1[i] * cos[i] - x2[i] * sin[i];
            x2[i] = x2[i] * cos[i] + x1[i] * sin[i];
            x1[i] = a;
        }
    }
    if (head < s.a) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x1[i] = x1[i] * scale;
            x2[i] = x2[i] * scale;
        }
    }
    store8(to + t * 8, x1);
    store8(to + t * 8 + s.d / 2, x2);
}

/// Form of `rope` for any even head dimension: a warp has a head.
template <class T>
__device__ __forceinline__ void rope_plain(const T* __restrict__ qkv, const T* __restrict__ q_norm,
                                           const T* __restrict__ k_norm, float eps, float offset,
                                     const float* __restrict__ table, QScale q_scale,
                                           const u32* __restrict__ positions, const u32* __restrict__ slots, T* q_out,
                                           T* keys, T* values, u32 rows, Shape s, u32 num_positions, u32 num_slots) {
    u32 unit = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    u32 row = unit / s.heads(), head = unit - row * s.heads(), half = s.d / 2;
    if (row >= rows) return;  // a whole warp
    const T* x = qkv + (u64)unit * s.d;
    T* to = head_target(s, row, head, slots, num_slots, q_out, keys, values);
    if (!to) return;
    if (head >= s.a + s.k) {
        for (u32 i = lane; i < s.d; i += WARP) to[i] = x[i];
        return;
    }
    u32 position = table ? positions[row] : 0;
    if (table && !Places::position_ok(position, num_positions)) return;
    const Angles angles(s.places, table, position, row, s.width);
    const float scale = head < s.a ? q_scale.at(position) : 1.0f;
    const T* w = head < s.a ? q_norm : k_norm;
    float r = 1.0f;
    if (w) {
        float sum = 0.0f;
        for (u32 i = lane; i < s.d; i += WARP) sum = fma(to_f32(x[i]), to_f32(x[i]), sum);
        r = 1.0f / sqrtf(warp_sum(sum) / (float)s.d + eps);
    }
    for (u32 i = lane; i < half; i += WARP) {
        const u32 one = s.one(i), other = s.other(i);
        const bool turns = table && i < s.width / 2;
        float x1 = to_f32(x[one]), x2 = to_f32(x[other]);
        float cos = turns ? angles.cos(i) : 1.0f, sin = turns ? angles.sin(i) : 0.0f;
        if (w) {
            x1 = x1 * r * (to_f32(w[one]) + offset);
            x2 = x2 * r * (to_f32(w[other]) + offset);
        }
        to[one] = from_f32<T>((x1 * cos - x2 * sin) * scale);
        to[other] = from_f32<T>((x2 * cos + x1 * sin) * scale);
    }
}

/// Sum over the threads of a block of ROTATION_THREADS; every thread gets it.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float parts[ROTATION_THREADS / WARP];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = x;
    __syncthreads();
    x = parts[0];
#pragma unroll
    for (u32 i = 1; i < ROTATION_THREADS / WARP; i++) x = x + parts[i];
    return x;
}

/// Reciprocal of the root of the mean square of n elements, by a block.
template <class T> __device__ __forceinline__ float block_reciprocal(const T* x, u32 n, float eps) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < n; i += ROTATION_THREADS) sum = fma(to_f32(x[i]), to_f32(x[i]), sum);
    return 1.0f / sqrtf(block_sum(sum) / (float)n + eps);
}

/// Form of `rope` where the heads of a row are normalised together: a block has a row.
template <class T>
__device__ __forceinline__ void rope_rows(const T* __restrict__ qkv, const T* __restrict__ q_norm,
                                          const T* __restrict__ k_norm, float eps, float offset,
                                          const float* __restrict__ table, QScale q_scale,
                                          const u32* __restrict__ positions, const u32* __restrict__ slots, T* q_out,
                                          T* keys, T* values, u32 rows, Shape s, u32 num_positions, u32 num_slots) {
    const u32 row = blockIdx.x, half = s.d / 2;
    const T* x = qkv + (u64)row * s.heads() * s.d;
    const float r_q = block_reciprocal(x, s.a * s.d, eps), r_k = block_reciprocal(x + s.a * s.d, s.k * s.d, eps);
    const u32 position = table ? positions[row] : 0;
    if (table && !Places::position_ok(position, num_positions)) return;
    const Angles angles(s.places, table, position, row, s.d);
    for (u32 pair = threadIdx.x; pair < s.heads() * half; pair += ROTATION_THREADS) {
        const u32 head = pair / half, i = pair % half;
        const T* from = x + head * s.d;
        T* to = head_target(s, row, head, slots, num_slots, q_out, keys, values);
        if (!to) return;
        if (head >= s.a + s.k) {
            to[i] = from[i];
            to[i + half] = from[i + half];
            continue;
        }
        const bool is_q = head < s.a;
        const T* w = is_q ? q_norm + head * s.d : k_norm + (head - s.a) * s.d;
        const float r = is_q ? r_q : r_k, scale = is_q ? q_scale.at(position) : 1.0f;
        const float x1 = to_f32(from[i]) * r * (to_f32(w[i]) + offset);
        const float x2 = to_f32(from[i + half]) * r * (to_f32(w[i + half]) + offset);
        const float cos = table ? angles.cos(i) : 1.0f, sin = table ? angles.sin(i) : 0.0f;
        to[i] = from_f32<T>((x1 * cos - x2 * sin) * scale);
        to[i + half] = from_f32<T>((x2 * cos + x1 * sin) * scale);
    }
}

#define ROPE(T, WAY)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(ROTATION_THREADS)                                                   \
        WAY##_##T(const T* qkv, const T* q_norm, const T* k_norm, float eps, float offset, const float* table,       \
                  float q_scale, const float* q_factors, const u32* positions, const u32* slots, T* q_out, T* keys,  \
                  T* values, u32 rows, u32 a, u32 k, u32 d, u32 width, u32 num_positions,  \
                  u32 num_slots PLACE_PARAMS) {                                                                       \
        begin();                                                                                                     \
        WAY<T>(qkv, q_norm, k_norm, eps, offset, table, QScale{q_scale, q_factors}, positions, slots, q_out, keys,   \
               values, rows, Shape{a, k, d, width, PLACES}, num_positions, num_slots);                               \
    }
ROPE(float, rope_rows)
ROPE(bf16, rope_rows)
ROPE(float, rope)
ROPE(float, rope_plain)
ROPE(bf16, rope)
ROPE(bf16, rope_plain)

/// Copies the first n slots of a block's heads; a block of threads a record and head. `head_units`: units of 16 keys.
template <class U>
__device__ __forceinline__ void copy_kv(U* keys, U* values, const u32* __restrict__ copies, u32 kv_heads,
                                        u32 head_units, u32 num_blocks) {
    u32 src = copies[3 * blockIdx.x], dst = copies[3 * blockIdx.x + 1], n = copies[3 * blockIdx.x + 2];
    if (src == dst) return;
    if (!index_ok(BAD_KV_BLOCK, src, num_blocks) || !index_ok(BAD_KV_BLOCK, dst, num_blocks)) return;
    if (!index_ok(BAD_KV_SLOT, n, KV_BLOCK + 1)) return;
    u64 from = ((u64)src * kv_heads + blockIdx.y) * head_units, to = ((u64)dst * kv_heads + blockIdx.y) * head_units;
    for (u32 i = threadIdx.x; i < n * (head_units / KV_BLOCK); i += blockDim.x) {
        keys[to + i] = keys[from + i];
        values[to + i] = values[from + i];
    }
}

extern "C" __global__ void __launch_bounds__(128)
    copy_kv_16(uint4* keys, uint4* values, const u32* copies, u32 kv_heads, u32 head_units, u32 num_blocks) {
    begin();
    copy_kv<uint4>(keys, values, copies, kv_heads, head_units, num_blocks);
}
extern "C" __global__ void __launch_bounds__(128)
    copy_kv_2(u16* keys, u16* values, const u32* copies, u32 kv_heads, u32 head_units, u32 num_blocks) {
    begin();
    copy_kv<u16>(keys, values, copies, kv_heads, head_units, num_blocks);
}

// ---- backward -----------------------------------------------------------------------------------------------------

/// Gradient through rotation and norm for a chunk of rows a block; its teams take the heads of the rows in turn.
template <class T, bool NORMS> __device__ __forceinline__ void rope_backward(const RopeGrad<T>& g, Shape s) {
    u32 team = s.d / 16, t = threadIdx.x % team, teams = ROTATION_THREADS / team, mine = threadIdx.x / team;
    u32 first = blockIdx.x * g.chunk_rows, end = min(first + g.chunk_rows, g.rows), units = (end - first) * s.heads();
    float sums[2][2][8] = {};  // of q and of k; of each half
    for (u32 base = 0; base < units; base += teams) {  // all teams turn equally often: sums need whole warps
        u32 unit = base + mine, row = first + unit / s.heads(), head = unit % s.heads();
        bool inside = unit < units, rotated = head < s.a + s.k;
        float d1[8] = {}, d2[8] = {};
        if (inside) {
            const float* d = head_grad(g, s, row, head) + t * 8;
            load8(d, d1);
            load8(d + s.d / 2, d2);
        }
        u32 position = inside && rotated && g.table ? g.positions[row] : 0;
        bool turns = inside && rotated && g.table && Places::position_ok(position, g.num_positions);
        if (inside && head < s.a) {
            const float scale = turns ? g.q_scale.at(position) : g.q_scale.all;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                d1[i] = d1[i] * scale;
                d2[i] = d2[i] * scale;
            }
        }
        if (turns) {
            float cos[8], sin[8];
            Angles(s.places, g.table, position, row, s.d).load(t * 8, cos, sin);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float a = d1[i] * cos[i] + d2[i] * sin[i];
                d2[i] = d2[i] * cos[i] - d1[i] * sin[i];
                d1[i] = a;
            }
        }
        if constexpr (NORMS) {
            float x1[8] = {}, x2[8] = {}, w1[8] = {}, w2[8] = {};
            if (inside && rotated) {
                const T* x = g.qkv + ((u64)row * s.heads() + head) * s.d + t * 8;
                const T* w = (head < s.a ? g.q_norm : g.k_norm) + t * 8;
                load8(x, x1);
                load8(x + s.d / 2, x2);
                load8(w, w1);
                load8(w + s.d / 2, w2);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    w1[i] = w1[i] + g.offset;
                    w2[i] = w2[i] + g.offset;
                }
            }
            float r = 1.0f / sqrtf(team_sum(squares(x1, x2), team) / (float)s.d + g.eps), dots[2] = {0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                dots[0] = fma(d1[i] * w1[i], x1[i], dots[0]);
                dots[1] = fma(d2[i] * w2[i], x2[i], dots[1]);
            }
            float slope = -team_sum(dots[0] + dots[1], team) * r * r / (float)s.d;
            if (inside && rotated) {
#pragma unroll
                for (int kind = 0; kind < 2; kind++) {
                    if ((head >= s.a) != (kind == 1)) continue;
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        sums[kind][0][i] = fma(d1[i], x1[i] * r, sums[kind][0][i]);
                        sums[kind][1][i] = fma(d2[i], x2[i] * r, sums[kind][1][i]);
                    }
                }
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    d1[i] = fma(x1[i], slope, d1[i] * w1[i]) * r;
                    d2[i] = fma(x2[i], slope, d2[i] * w2[i]) * r;
                }
            }
        }
        if (inside) {
            T* to = g.dqkv + ((u64)row * s.heads() + head) * s.d + t * 8;
            store8(to, d1);
            store8(to + s.d / 2, d2);
        }
    }
    if constexpr (NORMS) {
        if (!g.partials) return;  // of frozen weights
        __shared__ __align__(16) float shared[ROTATION_THREADS * 16];  // [teams][d]
#pragma unroll
        for (int kind = 0; kind < 2; kind++) {
            __syncthreads();
            store8(&shared[mine * s.d + t * 8], sums[kind][0]);
            store8(&shared[mine * s.d + t * 8 + s.d / 2], sums[kind][1]);
            __syncthreads();
            for (u32 at = threadIdx.x; at < s.d; at += ROTATION_THREADS) {
                float sum = shared[at];
                for (u32 i = 1; i < teams; i++) sum = sum + shared[i * s.d + at];
                g.partials[((u64)blockIdx.x * 2 + kind) * s.d + at] = sum;
            }
        }
    }
}

/// Form of `rope_backward` for any even head dimension up to MAX: a warp has a head, a lane the pairs lane, lane + 32, ..
template <class T, bool NORMS, int MAX>
__device__ __forceinline__ void rope_backward_heads(const RopeGrad<T>& g, Shape s) {
    const u32 warps = ROTATION_THREADS / WARP;
    constexpr int PAIRS = MAX / 2 / WARP; // of a lane, at most
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, half = s.d / 2;
    u32 first = blockIdx.x * g.chunk_rows, end = min(first + g.chunk_rows, g.rows), units = (end - first) * s.heads();
    float sums[2][PAIRS][2] = {};
    for (u32 unit = warp; unit < units; unit += warps) {
        u32 row = first + unit / s.heads(), head = unit % s.heads();
        const float* d = head_grad(g, s, row, head);
        T* to = g.dqkv + ((u64)row * s.heads() + head) * s.d;
        if (head >= s.a + s.k) {
            for (u32 i = lane; i < s.d; i += WARP) to[i] = from_f32<T>(d[i]);
            continue;
        }
        u32 position = g.table ? g.positions[row] : 0;
        if (g.table && !Places::position_ok(position, g.num_positions)) continue;
        const Angles angles(s.places, g.table, position, row, s.width);
        const float scale = head < s.a ? g.q_scale.at(position) : 1.0f;
        const T* x = NORMS ? g.qkv + ((u64)row * s.heads() + head) * s.d : nullptr;
        const T* w = head < s.a ? g.q_norm : g.k_norm;
        float grad[PAIRS][2], square = 0.0f, dot = 0.0f;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            u32 i = lane + j * WARP;
            grad[j][0] = grad[j][1] = 0.0f;
            if (i >= half) continue;
            const u32 at[2] = {s.one(i), s.other(i)};
            const bool turns = g.table && i < s.width / 2;
            float cos = turns ? angles.cos(i) : 1.0f, sin = turns ? angles.sin(i) : 0.0f;
            float d1 = d[at[0]] * scale, d2 = d[at[1]] * scale;
            grad[j][0] = d1 * cos + d2 * sin;
            grad[j][1] = d2 * cos - d1 * sin;
            if constexpr (NORMS) {
#pragma unroll
                for (int side = 0; side < 2; side++) {
                    float v = to_f32(x[at[side]]);
                    square = fma(v, v, square);
                    dot = fma(grad[j][side] * (to_f32(w[at[side]]) + g.offset), v, dot);
                }
            }
        }
        float r = 1.0f, slope = 0.0f;
        if constexpr (NORMS) {
            r = 1.0f / sqrtf(warp_sum(square) / (float)s.d + g.eps);
            slope = -warp_sum(dot) * r * r / (float)s.d;
        }
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            u32 i = lane + j * WARP;
            if (i >= half) continue;
            const u32 at[2] = {s.one(i), s.other(i)};
#pragma unroll
            for (int side = 0; side < 2; side++) {
                float out = grad[j][side];
                if constexpr (NORMS) {
                    float v = to_f32(x[at[side]]);
                    if (head < s.a) sums[0][j][side] = fma(out, v * r, sums[0][j][side]);
                    else sums[1][j][side] = fma(out, v * r, sums[1][j][side]);
                    out = fma(v, slope, out * (to_f32(w[at[side]]) + g.offset)) * r;
                }
                to[at[side]] = from_f32<T>(out);
            }
        }
    }
    if constexpr (NORMS) {
        if (!g.partials) return;  // of frozen weights
        __shared__ float shared[warps][MAX];
#pragma unroll
        for (int kind = 0; kind < 2; kind++) {
            __syncthreads();
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                u32 i = lane + j * WARP;
                if (i >= half) continue;
                shared[warp][s.one(i)] = sums[kind][j][0];
                shared[warp][s.other(i)] = sums[kind][j][1];
            }
            __syncthreads();
            for (u32 at = threadIdx.x; at < s.d; at += ROTATION_THREADS) {
                float sum = shared[0][at];
#pragma unroll
                for (int i = 1; i < warps; i++) sum = sum + shared[i][at];
                g.partials[((u64)blockIdx.x * 2 + kind) * s.d + at] = sum;
            }
        }
    }
}

template <class T, bool NORMS> __device__ __forceinline__ void rope_backward_plain(const RopeGrad<T>& g, Shape s) {
    rope_backward_heads<T, NORMS, NARROW>(g, s);
}
template <class T, bool NORMS> __device__ __forceinline__ void rope_backward_wide(const RopeGrad<T>& g, Shape s) {
    rope_backward_heads<T, NORMS, HEAD_DIM_MAX>(g, s);
}

/// Form of `rope_backward` where the heads of a row were normalised together: a block has a chunk of rows, in order.
template <class T, bool NORMS> __device__ __forceinline__ void rope_backward_rows(const RopeGrad<T>& g, Shape s) {
    const u32 half = s.d / 2, width_q = s.a * s.d, width_k = s.k * s.d;
    const u32 first = blockIdx.x * g.chunk_rows, end = min(first + g.chunk_rows, g.rows);
    for (u32 row = first; row < end; row++) {
        const T* x = g.qkv + (u64)row * s.heads() * s.d;
        T* to = g.dqkv + (u64)row * s.heads() * s.d;
        const u32 position = g.table ? g.positions[row] : 0;
        if (g.table && !Places::position_ok(position, g.num_positions)) return;
        const Angles angles(s.places, g.table, position, row, s.d);
        // The gradients of a pair before its rotation.
        auto unrotated = [&](u32 head, u32 i, float& d1, float& d2) {
            const float* d = head_grad(g, s, row, head);
            const float scale = head < s.a ? g.q_scale.at(position) : 1.0f;
            const float a = d[i] * scale, b = d[i + half] * scale;
            const float cos = g.table ? angles.cos(i) : 1.0f, sin = g.table ? angles.sin(i) : 0.0f;
            d1 = a * cos + b * sin;
            d2 = b * cos - a * sin;
        };
        auto weights = [&](u32 head) { return head < s.a ? g.q_norm + head * s.d : g.k_norm + (head - s.a) * s.d; };
        const float r[2] = {block_reciprocal(x, width_q, g.eps), block_reciprocal(x + width_q, width_k, g.eps)};
        float dots[2] = {0.0f, 0.0f};
        for (u32 pair = threadIdx.x; pair < (s.a + s.k) * half; pair += ROTATION_THREADS) {
            const u32 head = pair / half, i = pair % half;
            const T *v = x + head * s.d, *w = weights(head);
            float d1, d2;
            unrotated(head, i, d1, d2);
            float& dot = dots[head >= s.a];
            dot = fma(d1 * (to_f32(w[i]) + g.offset), to_f32(v[i]), dot);
            dot = fma(d2 * (to_f32(w[i + half]) + g.offset), to_f32(v[i + half]), dot);
        }
        const float slopes[2] = {-block_sum(dots[0]) * r[0] * r[0] / (float)width_q,
                                 -block_sum(dots[1]) * r[1] * r[1] / (float)width_k};
        float* partials = g.partials + (u64)blockIdx.x * (s.a + s.k) * s.d;
        for (u32 pair = threadIdx.x; pair < s.heads() * half; pair += ROTATION_THREADS) {
            const u32 head = pair / half, i = pair % half, at = head * s.d + i;
            if (head >= s.a + s.k) {
                const float* d = head_grad(g, s, row, head);
                to[at] = from_f32<T>(d[i]);
                to[at + half] = from_f32<T>(d[i + half]);
                continue;
            }
            const u32 kind = head >= s.a;
            const T* w = weights(head);
            const float v1 = to_f32(x[at]), v2 = to_f32(x[at + half]);
            float d1, d2;
            unrotated(head, i, d1, d2);
            to[at] = from_f32<T>(fma(v1, slopes[kind], d1 * (to_f32(w[i]) + g.offset)) * r[kind]);
            to[at + half] = from_f32<T>(fma(v2, slopes[kind], d2 * (to_f32(w[i + half]) + g.offset)) * r[kind]);
            if (!g.partials) continue;  // of frozen weights
            // A thread has the same pairs of all rows.
            partials[at] = fma(d1, v1 * r[kind], row > first ? partials[at] : 0.0f);
            partials[at + half] = fma(d2, v2 * r[kind], row > first ? partials[at + half] : 0.0f);
        }
    }
}

#define ROPE_BACKWARD(T, WAY)                                                                                        \
    extern "C" __global__ void __launch_bounds__(ROTATION_THREADS)                                                   \
        WAY##_##T(const float* dq, const float* dkv, const float* table, float q_scale, const float* q_factors,      \
                  const u32* positions, T* dqkv, u32 rows, u32 chunk_rows, u32 a, u32 k, u32 d, u32 width,           \
                  u32 num_positions PLACE_PARAMS) {                                                                  \
        begin();                                                                                                     \
        RopeGrad<T> g = {dq, dkv, nullptr, nullptr, nullptr, 0.0f, 0.0f, table, {q_scale, q_factors}, positions,     \
                         dqkv, nullptr, rows, chunk_rows, num_positions};                                            \
        WAY<T, false>(g, Shape{a, k, d, width, PLACES});                                                             \
    }
#define ROPE_BACKWARD_NORMS(T, WAY)                                                                                  \
    extern "C" __global__ void __launch_bounds__(ROTATION_THREADS) WAY##_norms_##T(                                  \
        const float* dq, const float* dkv, const float* table, float q_scale, const float* q_factors,                \
        const u32* positions, T* dqkv, u32 rows, u32 chunk_rows, u32 a, u32 k, u32 d, u32 width, u32 num_positions,  \
        const T* qkv, const T* q_norm, const T* k_norm, float eps, float offset,                                     \
        float* partials PLACE_PARAMS) {                                                                              \
        begin();                                                                                                     \
        RopeGrad<T> g = {dq, dkv, qkv, q_norm, k_norm, eps, offset, table, {q_scale, q_factors}, positions, dqkv,    \
                         partials, rows, chunk_rows, num_positions};                                                 \
        WAY<T, true>(g, Shape{a, k, d, width, PLACES});                                                              \
    }
ROPE_BACKWARD(float, rope_backward)
ROPE_BACKWARD(float, rope_backward_plain)
ROPE_BACKWARD(float, rope_backward_wide)
ROPE_BACKWARD(bf16, rope_backward)
ROPE_BACKWARD(bf16, rope_backward_plain)
ROPE_BACKWARD(bf16, rope_backward_wide)
ROPE_BACKWARD_NORMS(float, rope_backward)
ROPE_BACKWARD_NORMS(float, rope_backward_plain)
ROPE_BACKWARD_NORMS(float, rope_backward_wide)
ROPE_BACKWARD_NORMS(float, rope_backward_rows)
ROPE_BACKWARD_NORMS(bf16, rope_backward)
ROPE_BACKWARD_NORMS(bf16, rope_backward_plain)
ROPE_BACKWARD_NORMS(bf16, rope_backward_wide)
ROPE_BACKWARD_NORMS(bf16, rope_backward_rows)
