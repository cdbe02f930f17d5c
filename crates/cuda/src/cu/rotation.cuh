// Shared by the kernels of rotation: rows of heads, factors, and where heads go. Before it come the angles of rows.

#define ROTATION_THREADS 256

/// Shape of a row of qkv.
struct Shape {
    u32 a, k, d;
    u32 width;  // elements of a head that are rotated, the first ones
    Places places;
    __device__ __forceinline__ u32 heads() const { return a + 2 * k; }
    /// The two elements of a pair: first the pairs that are rotated, then those of the rest.
    __device__ __forceinline__ u32 one(u32 pair) const { return pair < width / 2 ? pair : pair + width / 2; }
    __device__ __forceinline__ u32 other(u32 pair) const { return pair < width / 2 ? pair + width / 2 : pair + d / 2; }
};

/// Factor on q: one of all rows, times one of the row's position where queries grow.
struct QScale {
    float all;
    const float* factors;  // [positions], only next to angles; or null
    __device__ __forceinline__ float at(u32 position) const { return factors ? all * factors[position] : all; }
};

/// The destination of a head of a row: q's in `q_out`, keys and values in their slot; null if the slot is bad.
template <class T>
__device__ __forceinline__ T* head_target(Shape s, u32 row, u32 head, const u32* __restrict__ slots, u32 num_slots,
                                          T* q_out, T* keys, T* values) {
    if (head < s.a) return q_out + ((u64)row * s.a + head) * s.d;
    u32 slot = slots[row], h = (head - s.a) % s.k;
    if (!index_ok(BAD_KV_SLOT, slot, num_slots)) return nullptr;
    u64 at = ((u64)(slot / KV_BLOCK) * s.k + h) * KV_BLOCK + slot % KV_BLOCK;
    return (head < s.a + s.k ? keys : values) + at * s.d;
}

/// Inputs of the backward pass.
template <class T> struct RopeGrad {
    const float *dq, *dkv;  // [M, a d], [M, 2 k d]
    const T *qkv, *q_norm, *k_norm;  // null without norms
    float eps, offset;
    const float* table;  // null where heads are not rotated
    QScale q_scale;
    const u32* positions;
    T* dqkv;
    float* partials;  // [chunks, 2, d], of rows [chunks, (a + k) d]: sums for the norms' weights; null of frozen ones
    u32 rows, chunk_rows, num_positions;
};

template <class T>
__device__ __forceinline__ const float* head_grad(const RopeGrad<T>& g, Shape s, u32 row, u32 head) {
    if (head < s.a) return g.dq + ((u64)row * s.a + head) * s.d;
    return g.dkv + ((u64)row * 2 * s.k + (head - s.a)) * s.d;
}
