// The pairs of a block of a product of experts, and the rows that they belong to.
//
// Legend: M rows, k experts chosen for each, P = M k pairs in the order of their experts, E experts. A tile has up to
// ROWS pairs of one expert. The host knows P and E alone: it launches the maximum of slots; blocks may have no tile.

/// A tile: pairs first..first + rows of `expert`. No rows: there is no such tile.
struct Tile {
    u32 expert, first, rows;
};

/// The tile of a slot. Each warp finds it alone.
template <u32 ROWS> __device__ __forceinline__ Tile find_tile(const u32* __restrict__ starts, u32 experts, u32 slot) {
    const u32 lane = threadIdx.x % WARP, each = tiles_of(experts, WARP), own = lane * each;
    const u32 end = own + each < experts ? own + each : experts;
    u32 tiles = 0;
#pragma unroll 4
    for (u32 e = own; e < end; e++) tiles += tiles_of(starts[e + 1] - starts[e], ROWS);
    u32 after = tiles;
#pragma unroll
    for (u32 step = 1; step < WARP; step <<= 1) {
        const u32 below = __shfl_up_sync(ALL_LANES, after, step);
        if (lane >= step) after += below;
    }
    u32 left = slot - (after - tiles);
    const u32 found = __ballot_sync(ALL_LANES, after - tiles <= slot && slot < after);
    if (found == 0) return {0, 0, 0};
    // The lane whose experts have the slot counts it down.
    Tile tile = {0, 0, 0};
    if (found >> lane & 1) {
        for (u32 e = own; e < end; e++) {
            const u32 first = starts[e], count = starts[e + 1] - first, of = tiles_of(count, ROWS);
            if (left < of) {
                const u32 rest = count - left * ROWS;
                tile = {e, first + left * ROWS, rest < ROWS ? rest : ROWS};
                break;
            }
            left -= of;
        }
    }
    const u32 from = __ffs(found) - 1;
    tile.expert = __shfl_sync(ALL_LANES, tile.expert, from);
    tile.first = __shfl_sync(ALL_LANES, tile.first, from);
    tile.rows = __shfl_sync(ALL_LANES, tile.rows, from);
    return tile;
}

/// The row that the pair at a place reads: its own, or one of M, each of `chosen` pairs.
__device__ __forceinline__ u32 row_of(const u32* __restrict__ pairs, u32 place, u32 chosen) {
    return chosen ? pairs[place] / chosen : place;
}

__device__ __forceinline__ void store_two(float* to, float a, float b) { *(float2*)to = make_float2(a, b); }
__device__ __forceinline__ void store_two(bf16* to, float a, float b) { *(u32*)to = pack_bf16(a, b); }
__device__ __forceinline__ void load_two(const float* p, float& a, float& b) {
    const float2 two = *(const float2*)p;
    a = two.x, b = two.y;
}
__device__ __forceinline__ void load_two(const bf16* p, float& a, float& b) {
    const u32 two = *(const u32*)p;
    a = low_f32(two), b = high_f32(two);
}

/// Stores two sums of a gradient, or adds them, rounded first.
template <class T> __device__ __forceinline__ void store_gradient(T* to, float a, float b, u32 add) {
    a = to_f32(from_f32<T>(a)), b = to_f32(from_f32<T>(b));
    if (add) {
        float was[2];
        load_two(to, was[0], was[1]);
        a = was[0] + a, b = was[1] + b;
    }
    store_two(to, a, b);
}

/// True if lines of `cols` elements of `size` bytes can be read 16 bytes at a time: none reaches beyond its line.
__device__ __forceinline__ bool is_wide(const void* x, u32 cols, u32 size) { return ((u64)x | (u64)cols * size) % 16 == 0; }
