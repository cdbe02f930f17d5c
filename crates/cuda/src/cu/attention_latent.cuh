// Shared by the kernels of attention over latents: one key of 576 elements for all heads, which is the value, too,
// without its first 64 columns. See attention_latent.cu.
//
// A row is a token with one head. With one key for all heads, a segment's rows lie one after another. A team of four
// warps has up to 32 of them: each warp takes 16 keys of a unit for the scores, and a quarter of the columns for sums.

/// Elements of a key; its first columns, which values do not have; elements of a value.
#define LATENT_KEY 576
#define LATENT_FIRST 64
#define LATENT_VALUE 512
/// 16-byte pieces of a key and of a value.
#define KEY_PIECES (LATENT_KEY / 8)
#define VALUE_PIECES (LATENT_VALUE / 8)
/// Warps of a team.
#define TEAM 4

/// Waits for the other warps of a team.
__device__ __forceinline__ void team_barrier(u32 team) {
    asm volatile("bar.sync %0, 128;" ::"r"(team + 1) : "memory");
}

/// A block of WARPS warps copies NUM rows of N columns to shared memory, `pitch` elements apart; zeros after `valid`. A
/// warp has a row at a time.
template <int N, int NUM, int WARPS>
__device__ __forceinline__ void fetch_own(bf16* to, const bf16* from, u32 pitch, u32 valid) {
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 row = warp; row < NUM; row += WARPS) {
        const bf16* row_from = from + (row < valid ? (u64)row * pitch : 0) + lane * 8;
        bf16* row_to = to + swizzled<N>(row, lane);
#pragma unroll
        for (u32 i = 0; i < N / 8; i += WARP)
            if (i + lane < N / 8) copy_async_16(row_to + i * 8, row_from + i * 8, row < valid);
    }
}

/// out[tile][n] = TILES times 16 rows . row n of 16 others, both in shared memory; each element is CHAINS chains, which
/// take STEPS steps of 16 columns in turn, a multiple of four, and their sum. LEFT, RIGHT: columns of the rows in
/// shared memory, SKIP_LEFT and SKIP_RIGHT those before the first step, multiples of 64. `between` is called before each
/// four steps, with their number: copies that are begun there do not keep the products waiting.
template <int CHAINS, int STEPS, int LEFT, int RIGHT, int SKIP_LEFT, int SKIP_RIGHT, int TILES, class Between>
__device__ __forceinline__ void latent_dot(float (&out)[TILES][2][4], const bf16* left, const bf16* right,
                                           const Between& between) {
    const u32 lane = threadIdx.x % WARP;
    left += lane % 16 * LEFT + SKIP_LEFT;
    right += (lane / 16 * 8 + lane % 8) * RIGHT + SKIP_RIGHT;
    u32 left_at[4], right_at[4]; // the pieces of four steps, as `swizzled` permutes them
#pragma unroll
    for (u32 t = 0; t < 4; t++) {
        left_at[t] = ((2 * t + lane / 16) ^ lane % 8) * 8;
        right_at[t] = ((2 * t + lane / 8 % 2) ^ lane % 8) * 8;
    }
    float sum[CHAINS][TILES][2][4] = {};
#pragma unroll 1
    for (u32 first = 0; first < STEPS / 4; first++) {
        between(first);
#pragma unroll
        for (u32 t = 0; t < 4; t++) {
            u32 b[4];
            ldmatrix_x4(b, right + first * 4 * STEP + right_at[t]);
            const u32 one[2] = {b[0], b[1]}, two[2] = {b[2], b[3]};
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) {
                u32 a[4];
                ldmatrix_x4(a, left + tile * TILE * LEFT + first * 4 * STEP + left_at[t]);
                mma_bf16(sum[t % CHAINS][tile][0], a, one);
                mma_bf16(sum[t % CHAINS][tile][1], a, two);
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < TILES * 8; i++) {
        float& x = out[i / 8][i / 4 % 2][i % 4];
        x = sum[0][i / 8][i / 4 % 2][i % 4];
        if constexpr (CHAINS > 1) x = x + sum[1][i / 8][i / 4 % 2][i % 4];
    }
}

/// sum[tile] += TILES times 16 rows of 16 STEPS weights . COLUMNS columns of as many rows of D from `piece` on; each
/// element one chain. The weights lie in rows of UNIT.
template <int TILES, int STEPS, int D, int COLUMNS, int N>
__device__ __forceinline__ void latent_sum(float (&sum)[TILES][N][4], const bf16* weights, const bf16* rows,
                                           u32 piece) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 t = 0; t < STEPS; t++) {
        u32 a[TILES][4];
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) read_left<UNIT>(a[tile], weights + tile * TILE * UNIT, t);
#pragma unroll
        for (u32 pair = 0; pair < COLUMNS / 16; pair++) {
            u32 b[4];
            ldmatrix_x4_trans(b, rows + swizzled<D>(t * STEP + lane % 16, piece + 2 * pair + lane / 16));
            const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) {
                mma_bf16(sum[tile][2 * pair], a[tile], first);
                mma_bf16(sum[tile][2 * pair + 1], a[tile], second);
            }
        }
    }
}

/// Writes two neighbouring weights of a row to shared memory, as `latent_sum` reads them.
__device__ __forceinline__ void put_weights(bf16* weights, u32 row, u32 column, float first, float second) {
    *(u32*)(weights + swizzled<UNIT>(row, column / 8) + column % 8) = pack_bf16(first, second);
}

/// A segment's keys, a unit at a time through one buffer or two.
template <int WARPS> struct LatentStream {
    static constexpr u32 SHARE = UNIT / WARPS; // of a warp
    static constexpr u32 COPIES = 9;           // as `latent_dot` has groups of steps
    const bf16* keys;
    const u32* table;
    const Shape& shape;
    u32 num_keys, first, num_buffers;
    bf16* buffers;
    u32 now, next; // a lane's table entry of the chunk that is fetched from, and of the next one
    const bf16* from; // the warp's keys of the unit that is fetched, their place, and how many are there
    bf16* to;
    u32 valid;

    __device__ __forceinline__ LatentStream(const bf16* keys, const u32* table, const Shape& shape, u32 num_keys,
                                            u32 first, u32 num_buffers, bf16* buffers)
        : keys(keys), table(table), shape(shape), num_keys(num_keys), first(first), num_buffers(num_buffers),
          buffers(buffers) {
        now = entries(first / CHUNK_UNITS);
        next = entries(first / CHUNK_UNITS + 1);
        fetch(first);
    }
    __device__ __forceinline__ u32 entries(u32 chunk) const {
        const u32 block = chunk * (ATTENTION_CHUNK / KV_BLOCK) + threadIdx.x % WARP;
        return block * KV_BLOCK < num_keys ? table[block] : 0;
    }
    __device__ __forceinline__ bf16* unit_at(u32 unit) const {
        return buffers + (num_buffers > 1 ? unit % 2 * UNIT * LATENT_KEY : 0);
    }
    /// Begins to fetch a unit: `copy` does so.
    __device__ __forceinline__ void enter(u32 unit) {
        if (unit % CHUNK_UNITS == 0 && unit > first) {
            now = next;
            next = entries(unit / CHUNK_UNITS + 1);
        }
        const u32 row = threadIdx.x / WARP * SHARE, key = unit * UNIT + row;
        u32 entry = __shfl_sync(ALL_LANES, now, key % ATTENTION_CHUNK / KV_BLOCK);
        valid = key < num_keys ? num_keys - key : 0;
        if (!index_ok(BAD_KV_BLOCK, entry, shape.blocks)) entry = valid = 0;
        from = keys + ((u64)entry * KV_BLOCK + key % KV_BLOCK) * LATENT_KEY;
        to = unit_at(unit) + row * LATENT_KEY;
    }
    /// Copies a part of the unit that is fetched, of COPIES parts.
    __device__ __forceinline__ void copy(u32 part) {
#pragma unroll
        for (u32 i = 0; i < SHARE * KEY_PIECES / WARP / COPIES; i++) {
            const u32 at = (part * (SHARE * KEY_PIECES / WARP / COPIES) + i) * WARP + threadIdx.x % WARP;
            const u32 row = at / KEY_PIECES;
            copy_async_16(to + swizzled<LATENT_KEY>(row, at - row * KEY_PIECES), from + at * 8, row < valid);
        }
    }
    __device__ __forceinline__ void fetch(u32 unit) {
        enter(unit);
#pragma unroll
        for (u32 part = 0; part < COPIES; part++) copy(part);
        copy_async_commit();
    }
    /// Waits for a unit; true if the caller shall copy the next one of those before `end`, part by part.
    __device__ __forceinline__ bool arrive(u32 unit, u32 end) {
        copy_async_wait<0>();
        __syncthreads();
        if (num_buffers == 1 || unit + 1 >= end) return false;
        enter(unit + 1);
        return true;
    }
    /// After the last use of a unit.
    __device__ __forceinline__ void leave(u32 unit, u32 end) {
        copy_async_commit();
        if (num_buffers > 1 || unit + 1 >= end) return;
        __syncthreads();
        fetch(unit + 1);
    }
};

/// A block's rows of a segment, and those that this lane holds of its team's.
template <int TILES, int TEAMS> struct LatentRows {
    static constexpr u32 ROWS = TEAMS * TILES * TILE;
    u64 place;              // of the block's first row
    u32 valid;              // rows that are there
    u32 num_keys;           // that any row sees
    u32 team_keys;          // that any row of the team sees; 0 where it has none
    u32 row_keys[TILES][2]; // that this lane's rows see; 0 for a row that is not there
    u32 own;                // this lane's first row among the block's

    __device__ __forceinline__ LatentRows(const Segment& segment, const Shape& shape, u32 first) {
        const u32 num_rows = segment.rows * shape.heads, mine = first + own_warp() / TEAM * TILES * TILE;
        own = mine - first + threadIdx.x % WARP / 4;
        auto keys_of = [&](u32 row) -> u32 {
            return row < num_rows ? segment.first_position + row / shape.heads + 1 : 0;
        };
        place = (u64)segment.first_row * shape.heads + first;
        valid = min(num_rows - first, ROWS);
        num_keys = keys_of(first + valid - 1);
        team_keys = mine < num_rows ? keys_of(min(num_rows, mine + TILES * TILE) - 1) : 0;
#pragma unroll
        for (u32 i = 0; i < 2 * TILES; i++)
            row_keys[i / 2][i % 2] = keys_of(first + row(i / 2, i % 2));
    }
    /// Returns this lane's row among the block's.
    __device__ __forceinline__ u32 row(u32 tile, u32 r) const { return own + tile * TILE + 8 * r; }
};
