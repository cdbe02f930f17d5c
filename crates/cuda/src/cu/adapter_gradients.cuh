// Gradients of a layer's adapters in tiles: dB_i = dy_i^T u_i (wide dy_i, narrow u_i), dA = du^T x (wide x, narrow du).

/// Outputs of each block, 0 for none; the rank of one adapter and of all blocks; the layer's inputs.
struct Shape {
    u32 n[3], rank, sr, k;
};

/// WIDE columns of the wide operand by NARROW of the narrow one, from `wide` and `narrow` on, of `n` and `r`.
template <u32 WIDE, u32 NARROW> struct Tile {
    u32 wide, narrow, n, r;
    /// Which dB, or 3 for dA, whose rows are the narrow columns.
    u32 index;

    __device__ __forceinline__ Tile(const Shape& of, u32 block) {
        u32 narrow_tiles = tiles_of(of.rank, NARROW);
        n = of.k, r = of.sr, index = 3;
#pragma unroll
        for (u32 i = 0; i < 3; i++) {
            if (index < 3) continue;
            u32 tiles = tiles_of(of.n[i], WIDE) * narrow_tiles;
            if (block < tiles) {
                n = of.n[i], r = of.rank, index = i;
            } else {
                block -= tiles;
            }
        }
        if (index == 3) narrow_tiles = tiles_of(r, NARROW);
        wide = block / narrow_tiles * WIDE, narrow = block % narrow_tiles * NARROW;
    }
    __device__ __forceinline__ bool of_a() const { return index == 3; }
};

/// Four neighbours of a row: grad = sum, or grad += sum, rounded first.
template <class T> __device__ __forceinline__ void put(T* grad, float (&sum)[4], u32 add) {
    float old[4] = {};
    if (add) load4(grad, old);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        float x = to_f32(from_f32<T>(sum[i]));
        sum[i] = add ? old[i] + x : x;
    }
    store4(grad, sum);
}
