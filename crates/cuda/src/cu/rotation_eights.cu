// Rotation of part of a head without norms, and its gradient, to the bits of the plain kernels: a thread has eight pairs,
// whose elements are in whole 16-byte pieces.

/// Eight pairs of a head of a row.
struct Eight {
    u32 row, head, one, other;
    bool turns;
    __device__ __forceinline__ Eight(Shape s) {
        const u32 item = blockIdx.x * blockDim.x + threadIdx.x, pieces = s.d / 16, unit = item / pieces;
        const u32 pair = (item - unit * pieces) * 8;
        row = unit / s.heads();
        head = unit - row * s.heads();
        one = s.one(pair);
        other = s.other(pair);
        turns = pair < s.width / 2;
    }
    /// The cosines and sines of the pairs of a row at `position`; `table` is null where heads are not rotated.
    __device__ __forceinline__ void read(const float* table, Shape s, u32 position, float (&cos)[8],
                                         float (&sin)[8]) const {
        if (table && turns) return Angles(s.places, table, position, row, s.width).load(one, cos, sin);
#pragma unroll
        for (u32 i = 0; i < 8; i++) cos[i] = 1.0f, sin[i] = 0.0f;
    }
};

template <class T>
__device__ __forceinline__ void rope_eights(const T* __restrict__ qkv, const float* __restrict__ table, QScale q_scale,
                                            const u32* __restrict__ positions, const u32* __restrict__ slots, T* q_out, T* keys,
                                            T* values, u32 rows, Shape s, u32 num_positions, u32 num_slots) {
    const Eight of(s);
    if (of.row >= rows) return;
    const T* x = qkv + ((u64)of.row * s.heads() + of.head) * s.d;
    T* to = head_target(s, of.row, of.head, slots, num_slots, q_out, keys, values);
    if (!to) return;
    float x1[8], x2[8];
    load8(x + of.one, x1);
    load8(x + of.other, x2);
    if (of.head < s.a + s.k) {
        const u32 position = table ? positions[of.row] : 0;
        if (table && !Places::position_ok(position, num_positions)) return;
        const float scale = of.head < s.a ? q_scale.at(position) : 1.0f;
        float cos[8], sin[8];
        of.read(table, s, position, cos, sin);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float y = (x1[i] * cos[i] - x2[i] * sin[i]) * scale;
            x2[i] = (x2[i] * cos[i] + x1[i] * sin[i]) * scale;
            x1[i] = y;
        }
    }
    store8(to + of.one, x1);
    store8(to + of.other, x2);
}

template <class T> __device__ __forceinline__ void rope_backward_eights(const RopeGrad<T>& g, Shape s) {
    const Eight of(s);
    if (of.row >= g.rows) return;
    const float* d = head_grad(g, s, of.row, of.head);
    T* to = g.dqkv + ((u64)of.row * s.heads() + of.head) * s.d;
    float d1[8], d2[8];
    load8(d + of.one, d1);
    load8(d + of.other, d2);
    if (of.head < s.a + s.k) {
        const u32 position = g.table ? g.positions[of.row] : 0;
        if (g.table && !Places::position_ok(position, g.num_positions)) return;
        const float scale = of.head < s.a ? g.q_scale.at(position) : 1.0f;
        float cos[8], sin[8];
        of.read(g.table, s, position, cos, sin);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float a = d1[i] * scale, b = d2[i] * scale;
            d1[i] = a * cos[i] + b * sin[i];
            d2[i] = b * cos[i] - a * sin[i];
        }
    }
    store8(to + of.one, d1);
    store8(to + of.other, d2);
}

#define EIGHTS(T)                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ROTATION_THREADS)                                                                 \
        rope_eights_##T(const T* qkv, const float* table, float q_scale, const float* q_factors, const u32* positions,             \
                        const u32* slots, T* q_out, T* keys, T* values, u32 rows, u32 a, u32 k, u32 d, u32 width,                  \
                        u32 num_positions, u32 num_slots PLACE_PARAMS) {                                                           \
        begin();                                                                                                                   \
        rope_eights<T>(qkv, table, QScale{q_scale, q_factors}, positions, slots, q_out, keys, values, rows,                        \
                       Shape{a, k, d, width, PLACES}, num_positions, num_slots);                                                   \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(ROTATION_THREADS)                                                                 \
        rope_backward_eights_##T(const float* dq, const float* dkv, const float* table, float q_scale, const float* q_factors,     \
                                 const u32* positions, T* dqkv, u32 rows, u32 chunk_rows, u32 a, u32 k, u32 d, u32 width,          \
                                 u32 num_positions PLACE_PARAMS) {                                                                 \
        begin();                                                                                                                   \
        rope_backward_eights<T>(RopeGrad<T>{dq, dkv, nullptr, nullptr, nullptr, 0.0f, 0.0f, table, QScale{q_scale, q_factors},     \
                                            positions, dqkv, nullptr, rows, chunk_rows, num_positions},                            \
                                Shape{a, k, d, width, PLACES});                                                                    \
    }
EIGHTS(float)
EIGHTS(bf16)
