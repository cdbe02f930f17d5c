// Shared by the kernels for heads of 256 elements; see attention_wide.cu and attention_backward_wide.cu.
//
// A thread's 128 sums leave no registers for operands, and a tile's own rows leave no shared memory for two units of
// keys and values. So operands are read from shared memory each time, and keys and values, or queries and gradients,
// have one buffer each: while one of the two is used, the other one arrives.

/// Elements of a head.
#define WIDE 256

/// out = 16 rows on the left . HALVES times 32 rows, all in shared memory; each element one chain over D.
template <int HALVES>
__device__ __forceinline__ void wide_dot(float (&out)[HALVES][4][4], const bf16* left, const bf16* rows) {
#pragma unroll
    for (u32 i = 0; i < HALVES * 16; i++) out[i / 16][i / 4 % 4][i % 4] = 0.0f;
#pragma unroll 4
    for (u32 t = 0; t < WIDE / STEP; t++) {
        u32 step[4];
        read_left<WIDE>(step, left, t);
#pragma unroll
        for (u32 half = 0; half < HALVES; half++) dot_step<WIDE>(out[half], step, rows + half * HALF * WIDE, t);
    }
}

/// out += left . the columns of 32 rows in shared memory from piece `first` on, as `sum_half`.
template <int N>
__device__ __forceinline__ void sum_columns(float (&out)[N][4], const u32 (&left)[2][4], const bf16* rows, u32 first) {
    const u32 row = threadIdx.x % 16, piece = first + threadIdx.x % WARP / 16;
#pragma unroll
    for (u32 t = 0; t < 2; t++) {
#pragma unroll
        for (u32 pair = 0; pair < N / 2; pair++) {
            u32 b[4];
            ldmatrix_x4_trans(b, rows + swizzled<WIDE>(t * STEP + row, 2 * pair + piece));
            const u32 one[2] = {b[0], b[1]}, two[2] = {b[2], b[3]};
            mma_bf16(out[2 * pair], left[t], one);
            mma_bf16(out[2 * pair + 1], left[t], two);
        }
    }
}

/// A warp fetches its 16 rows of a [M, a, WIDE] array to its place among the tile's in shared memory.
template <int WARPS>
__device__ __forceinline__ void fetch_own(bf16* to, const bf16* from, const TileRows<WARPS>& tile) {
    const u32 lane = threadIdx.x % WARP;
    to += threadIdx.x / WARP * TILE * WIDE;
#pragma unroll
    for (u32 row = 0; row < TILE; row++) {
        const bool valid = __shfl_sync(ALL_LANES, tile.row_keys[row / 8], row % 8 * 4) > 0;
        const u64 place = __shfl_sync(ALL_LANES, tile.places[row / 8], row % 8 * 4);
        copy_async_16(to + swizzled<WIDE>(row, lane), from + (valid ? place * WIDE + lane * 8 : 0), valid);
    }
}

/// A segment's keys and values, `KEYS` at a step; step n has those from n KEYS on. The caller waits and fetches again.
template <int KEYS, int WARPS> struct WideStream {
    static constexpr u32 SHARE = KEYS / WARPS;                           // of a warp
    static constexpr u32 RUN = SHARE < KV_BLOCK ? SHARE : (u32)KV_BLOCK; // of one block
    const u32* table;
    const Shape& shape;
    u32 kv_head, first_key, num_keys, first;
    u32 now, next; // a lane's table entry of the chunk that is fetched from, and of the next one

    __device__ __forceinline__ WideStream(const u32* table, const Shape& shape, u32 kv_head, u32 first_key,
                                          u32 num_keys, u32 first)
        : table(table), shape(shape), kv_head(kv_head), first_key(first_key), num_keys(num_keys), first(first) {
        now = entries(first * KEYS / ATTENTION_CHUNK);
        next = entries(first * KEYS / ATTENTION_CHUNK + 1);
    }
    __device__ __forceinline__ u32 entries(u32 chunk) const {
        const u32 block = chunk * (ATTENTION_CHUNK / KV_BLOCK) + threadIdx.x % WARP;
        return block * KV_BLOCK < num_keys ? table[block] : 0;
    }
    /// Before the first fetch of a step.
    __device__ __forceinline__ void enter(u32 step) {
        if (step * KEYS % ATTENTION_CHUNK == 0 && step > first) {
            now = next;
            next = entries(step * KEYS / ATTENTION_CHUNK + 1);
        }
    }
    __device__ __forceinline__ void fetch(bf16* to, const bf16* from, u32 step) const {
#pragma unroll
        for (u32 i = 0; i < SHARE / RUN; i++) {
            const u32 row = threadIdx.x / WARP * SHARE + i * RUN, key = step * KEYS + row;
            u32 entry = __shfl_sync(ALL_LANES, now, key % ATTENTION_CHUNK / KV_BLOCK);
            u32 valid = key < num_keys && key + RUN > first_key ? num_keys - key : 0;
            if (!index_ok(BAD_KV_BLOCK, entry, shape.blocks)) entry = valid = 0;
            fetch_rows<WIDE, RUN>(to, row, from + (shape.block(entry, kv_head) * KV_BLOCK + key % KV_BLOCK) * WIDE, valid);
        }
    }
};
