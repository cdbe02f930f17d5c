// Shared by the kernels of linear attention: heads, segments, and the states that these begin with and leave.
//
// Legend: M rows, S segments, P places of states, H value heads, each H / G neighbours on one of G heads of q and k, dk
// elements of a q or k head, dv of v; C = 2 G dk + H dv. A row of q, k and v is [C], its inputs [C + H dv + 2 H].

#define NO_STATE 0xffffffffu
/// Rows between states that are kept for the backward pass.
#define STATE_CHUNK 64

struct DeltaHeads {
    u32 key_heads, value_heads, key_dim, value_dim;

    __device__ __forceinline__ u32 key_width() const { return key_heads * key_dim; }
    __device__ __forceinline__ u32 value_width() const { return value_heads * value_dim; }
    __device__ __forceinline__ u32 conv_width() const { return 2 * key_width() + value_width(); }
    __device__ __forceinline__ u32 input_width() const { return conv_width() + value_width() + 2 * value_heads; }
    /// The head of q and k that a value head reads.
    __device__ __forceinline__ u32 key_of(u32 value_head) const { return value_head / (value_heads / key_heads); }
};

struct Segment {
    u32 first, rows, position, parent;
};

/// The record of a segment, its rows inside the pass.
__device__ __forceinline__ Segment segment_at(const u32* __restrict__ segments, u32 s, u32 rows) {
    const u32* record = segments + (u64)s * SEGMENT_FIELDS;
    Segment is = {record[0], record[1], record[2], record[4]};
    if (!index_ok(BAD_SEGMENT, is.first, rows + 1) || !index_ok(BAD_SEGMENT, is.first + is.rows, rows + 1)) is.rows = 0;
    return is;
}

/// True if a segment is in a launch's wave: 0 all, 1 those without a parent, 2 those with one.
__device__ __forceinline__ bool is_of_wave(const Segment& is, u32 wave) {
    return wave == 0 || (wave == 2) == (is.parent != NO_PARENT);
}

/// True if a segment goes on from the end of one without a parent.
__device__ __forceinline__ bool is_child(const u32* __restrict__ segments, u32 s, const Segment& of) {
    const u32* record = segments + (u64)s * SEGMENT_FIELDS;
    return record[4] == of.first && record[2] == of.rows && of.parent == NO_PARENT;
}

/// Four neighbouring elements; unless `wide`, their address may have any alignment.
template <class T>
__device__ __forceinline__ void take4(const T* p, u32 wide, float (&x)[4]) {
    if (wide) return load4(p, x);
#pragma unroll
    for (u32 j = 0; j < 4; j++) x[j] = to_f32(p[j]);
}
template <class T>
__device__ __forceinline__ void put4(T* p, u32 wide, const float (&x)[4]) {
    if (wide) return store4(p, x);
#pragma unroll
    for (u32 j = 0; j < 4; j++) p[j] = from_f32<T>(x[j]);
}
