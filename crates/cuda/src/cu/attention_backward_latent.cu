// Gradients of attention over latents; the arithmetic is that of attention_backward.cu, with one key of 576 elements
// for all heads, which is the value, too, without its first 64 columns: those of dO are zeros, and those of dV become
// zeros.
//
// A row's dQ is one chain over its keys, and a key's gradients are chains over the rows that see it: those of its own
// segment from the tile's first row on, then those of children, in steps of 64 rows of one segment. A tile of 64 keys
// is cut into pieces, which are joined in order, by its own number of steps; so a key's bits follow from its
// segment and the children, whatever else is in the pass.

// ---- dQ -------------------------------------------------------------------------------------------------------------

/// A block takes a tile of rows, as in the forward pass; `delta` is written for the keys' gradients.
template <int TILES, int TEAMS>
__device__ __forceinline__ void latent_queries(const bf16* q, const bf16* keys, const u32* segments, const u32* tables,
                                               const bf16* out, const float* lse, const bf16* dout, float* delta,
                                               float* dq, u32 block, const Shape& shape, u32 num_buffers, float scale) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    typedef LatentRows<TILES, TEAMS> Rows;
    const u32 warp = own_warp(), lane = threadIdx.x % WARP, team = warp / TEAM, part = warp % TEAM;
    u32 of, place;
    if (!find_tile(segments, shape.segments, shape.heads, Rows::ROWS, block, of, place)) return;
    const Segment segment = segment_at(segments, of);
    if (!segment_ok(segment, shape)) return;
    const u32 first = ((segment.rows * shape.heads + Rows::ROWS - 1) / Rows::ROWS - 1 - place) * Rows::ROWS;
    const Rows rows(segment, shape, first);
    bf16* own = (bf16*)dynamic_shared;                     // [ROWS][KEY]
    bf16* douts = own + Rows::ROWS * LATENT_KEY;           // [ROWS][VALUE]
    bf16* weights = douts + Rows::ROWS * LATENT_VALUE;     // [ROWS][UNIT]
    float* deltas = (float*)(weights + Rows::ROWS * UNIT); // [ROWS]
    const bf16* value_douts = dout + rows.place * LATENT_KEY + LATENT_FIRST;
    fetch_own<LATENT_KEY, Rows::ROWS, TEAMS * TEAM>(own, q + rows.place * LATENT_KEY, LATENT_KEY, rows.valid);
    fetch_own<LATENT_VALUE, Rows::ROWS, TEAMS * TEAM>(douts, value_douts, LATENT_KEY, rows.valid);
    const u32 end = (rows.num_keys + UNIT - 1) / UNIT;
    LatentStream<TEAMS * TEAM> stream(keys, tables + segment.table, shape, rows.num_keys, 0, num_buffers,
                                      (bf16*)(deltas + Rows::ROWS));
    // A warp takes a row at a time, a lane two eights of it.
    for (u32 row = warp; row < Rows::ROWS; row += TEAMS * TEAM) {
        float sum = 0.0f;
        for (u32 i = 0; i < 2 && row < rows.valid; i++) {
            float x[8], y[8];
            const u32 at = row * LATENT_KEY + i * (LATENT_VALUE / 2) + lane * 8;
            load8(value_douts + at, x);
            load8(out + rows.place * LATENT_KEY + LATENT_FIRST + at, y);
#pragma unroll
            for (u32 j = 0; j < 8; j++) sum = fma(x[j], y[j], sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) deltas[row] = sum;
        if (lane == 0 && row < rows.valid) delta[rows.place + row] = sum;
    }
    own += team * TILES * TILE * LATENT_KEY;
    douts += team * TILES * TILE * LATENT_VALUE;
    const float log_scale = scale * LOG2_E;
    float log_sum[TILES][2];
#pragma unroll
    for (u32 i = 0; i < 2 * TILES; i++)
        log_sum[i / 2][i % 2] = rows.row_keys[i / 2][i % 2] ? lse[rows.place + rows.row(i / 2, i % 2)] * LOG2_E : 0.0f;

    float sum[TILES][LATENT_KEY / TEAM / 8][4] = {};
    for (u32 unit = 0; unit < end; unit++) {
        const bool copies = stream.arrive(unit, end);
        const bf16 *here = stream.unit_at(unit), *mine = here + part * STEP * LATENT_KEY;
        if (unit * UNIT < rows.team_keys) {
            float s[TILES][2][4], d[TILES][2][4];
            latent_dot<1, LATENT_KEY / STEP, LATENT_KEY, LATENT_KEY, 0, 0>(s, own, mine, [&](u32 i) {
                if (copies) stream.copy(i);
            });
            latent_dot<1, LATENT_VALUE / STEP, LATENT_VALUE, LATENT_KEY, 0, LATENT_FIRST>(d, douts, mine,
                                                                                                [](u32) {});
            // The team's weights of the unit before have been read.
            team_barrier(team);
#pragma unroll
            for (u32 i = 0; i < 2 * TILES; i++) {
                const u32 tile = i / 2, r = i % 2, row = rows.row(tile, r);
                const u32 seen = seen_of(rows.row_keys[tile][r], unit);
                const float own_delta = deltas[row];
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    float& x = d[tile][j / 2][2 * r + j % 2];
                    const float p = exp2_fast(fma(s[tile][j / 2][2 * r + j % 2], log_scale, -log_sum[tile][r]));
                    x = part * STEP + j / 2 * 8 + lane % 4 * 2 + j % 2 < seen ? p * (x - own_delta) : 0.0f;
                }
#pragma unroll
                for (u32 n = 0; n < 2; n++)
                    put_weights(weights, row, part * STEP + n * 8 + lane % 4 * 2, d[tile][n][2 * r],
                                d[tile][n][2 * r + 1]);
            }
            team_barrier(team);
            latent_sum<TILES, UNIT / STEP, LATENT_KEY, LATENT_KEY / TEAM>(
                sum, weights + team * TILES * TILE * UNIT, here, part * (KEY_PIECES / TEAM));
        }
        else
            for (u32 i = 0; copies && i < stream.COPIES; i++) stream.copy(i);
        stream.leave(unit, end);
    }
#pragma unroll
    for (u32 i = 0; i < 2 * TILES; i++) {
        const u32 tile = i / 2, r = i % 2;
        if (rows.row_keys[tile][r] == 0) continue;
        float* to = dq + (rows.place + rows.row(tile, r)) * LATENT_KEY + part * (LATENT_KEY / TEAM) + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < LATENT_KEY / TEAM / 8; n++)
            *(float2*)(to + n * 8) = make_float2(sum[tile][n][2 * r] * scale, sum[tile][n][2 * r + 1] * scale);
    }
}

// ---- dK and dV ------------------------------------------------------------------------------------------------------

/// Rows of queries that are taken together, and keys of a block: half a tile.
#define QUERIES 32
#define KEYS 32

/// The queries of an item, 32 at a time through one buffer or two: rows of q and of dO, and what goes with them.
struct LatentQueries {
    static constexpr u32 BUFFER = QUERIES * (LATENT_KEY + LATENT_VALUE); // elements
    static constexpr u32 COPIES = QUERIES / (2 * TEAM);
    struct Fields {
        float log_sum[QUERIES], delta[QUERIES];
        u32 bound[QUERIES]; // own keys that a row sees
    };
    const bf16* q;
    const bf16* dout;
    const float* lse;
    const float* delta;
    const Shape& shape;
    Queries queries;
    u32 half; // of the step
    bf16* buffers;
    Fields* fields;
    u64 at; // of the queries that are fetched: their place, how many are there, and where they go
    u32 valid;
    bf16* to;

    __device__ __forceinline__ u64 place() const {
        return (u64)queries.first_row * shape.heads + queries.row + half * QUERIES;
    }
    /// Begins to fetch: `copy` does so.
    __device__ __forceinline__ void enter(u32 buffer) {
        const u32 row = queries.row + half * QUERIES;
        valid = queries.end > row ? queries.end - row : 0;
        at = valid ? place() : 0;
        to = buffers + buffer * BUFFER;
        if (threadIdx.x < QUERIES) {
            const bool is_there = threadIdx.x < valid;
            // A missing row has weights of 2^-infinity.
            fields[buffer].log_sum[threadIdx.x] = is_there ? lse[at + threadIdx.x] * LOG2_E : -MINUS_INFINITY;
            fields[buffer].delta[threadIdx.x] = is_there ? delta[at + threadIdx.x] : 0.0f;
            fields[buffer].bound[threadIdx.x] =
                queries.bound ? queries.bound : (row + threadIdx.x) / shape.heads + 1;
        }
    }
    /// Copies a row of each warp, of COPIES.
    __device__ __forceinline__ void copy(u32 part) {
        const u32 row = threadIdx.x / WARP + part * 2 * TEAM, lane = threadIdx.x % WARP;
        const bool is_there = row < valid;
        const u64 from = (at + (is_there ? row : 0)) * LATENT_KEY + lane * 8;
        bf16* rows = to + swizzled<LATENT_KEY>(row, lane);
        bf16* douts = to + QUERIES * LATENT_KEY + swizzled<LATENT_VALUE>(row, lane);
#pragma unroll
        for (u32 i = 0; i < KEY_PIECES; i += WARP)
            if (i + lane < KEY_PIECES) copy_async_16(rows + i * 8, q + from + i * 8, is_there);
#pragma unroll
        for (u32 i = 0; i < VALUE_PIECES; i += WARP)
            copy_async_16(douts + i * 8, dout + from + LATENT_FIRST + i * 8, is_there);
    }
    __device__ __forceinline__ void fetch(u32 buffer) {
        enter(buffer);
#pragma unroll
        for (u32 part = 0; part < COPIES; part++) copy(part);
        copy_async_commit();
    }
    /// Moves on; false at the end.
    __device__ __forceinline__ bool next() {
        if (half == 0 && queries.row + QUERIES < queries.end) return half = 1, true;
        half = 0;
        return queries.next();
    }
};

/// Rows of partial sums in shared memory, apart by 8 banks.
#define PARTIAL_PITCH (QUERIES + 8)
#define PARTIAL (KEYS * PARTIAL_PITCH)

/// to = 32 keys . 32 rows, both in shared memory, over STEPS steps of 16 columns from the pieces `left_piece` and
/// `right_piece` on; each element one chain. `between` is called before each step.
template <int STEPS, int RIGHT, class Between>
__device__ __forceinline__ void partial_dot(float* to, const bf16* keys, u32 left_piece, const bf16* rows,
                                            u32 right_piece, const Between& between) {
    const u32 lane = threadIdx.x % WARP;
    float sum[2][4][4] = {};
#pragma unroll
    for (u32 t = 0; t < STEPS; t++) {
        between(t);
        u32 a[2][4], b[2][4];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            ldmatrix_x4(a[i], keys + swizzled<LATENT_KEY>(i * TILE + lane % 16, left_piece + 2 * t + lane / 16));
            ldmatrix_x4(b[i], rows + swizzled<RIGHT>(i * 16 + lane / 16 * 8 + lane % 8,
                                                     right_piece + 2 * t + lane / 8 % 2));
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 right[2] = {b[i / 4][i % 2 * 2], b[i / 4][i % 2 * 2 + 1]};
            mma_bf16(sum[i / 2 % 2][i / 4 * 2 + i % 2], a[i / 2 % 2], right);
        }
    }
    to += lane / 4 * PARTIAL_PITCH + lane % 4 * 2;
#pragma unroll
    for (u32 i = 0; i < 16; i++)
        *(float2*)(to + (i / 8 * TILE + i % 2 * 8) * PARTIAL_PITCH + i / 2 % 4 * 8) =
            make_float2(sum[i / 8][i / 2 % 4][i % 2 * 2], sum[i / 8][i / 2 % 4][i % 2 * 2 + 1]);
}

/// The sums of four quarters' partial sums, of four neighbouring rows.
__device__ __forceinline__ void whole_dot(float (&to)[4], const float* partials) {
    float part[4][4];
#pragma unroll
    for (u32 i = 0; i < TEAM; i++) load4(partials + i * PARTIAL, part[i]);
#pragma unroll
    for (u32 i = 0; i < 4; i++) to[i] = (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]);
}

/// A block takes half the keys of an item. Warps 0 to 3 have scores and dK, the others dO V^T and dV: a warp a quarter of
/// the elements of the first two, which all join, then a quarter of the columns of the sums.
__device__ __forceinline__ void latent_keys(const bf16* q, const bf16* keys, const u32* segments, const u32* tables,
                                            const float* lse, const bf16* dout, const float* delta, const u32* counts,
                                            const Tile* tiles, const Item* items, float* parts, float* dkv,
                                            const Shape& shape, u32 num_buffers, float scale) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    const u32 warp = own_warp(), lane = threadIdx.x % WARP, part = warp % TEAM;
    const bool has_keys = warp < TEAM;
    if (blockIdx.x / 2 >= counts[0]) return;
    const Item item = items[blockIdx.x / 2];
    const Tile tile = tiles[item.tile];
    const Segment segment = segment_at(segments, tile.segment);
    const u32 first_key = tile.key + blockIdx.x % 2 * KEYS;
    if (first_key >= segment.rows) return;

    bf16* own = (bf16*)dynamic_shared;                     // [KEYS][KEY]
    bf16* weights = own + KEYS * LATENT_KEY;               // [KEYS][UNIT], P and dS
    bf16* slopes = weights + KEYS * UNIT;
    float* partials = (float*)(slopes + KEYS * UNIT);      // [S, dO V^T][quarters][KEYS][QUERIES]
    typedef LatentQueries::Fields Fields;
    Fields* fields = (Fields*)(partials + 2 * TEAM * PARTIAL); // [2]
    bf16* buffers = (bf16*)(fields + 2);                       // [2][QUERIES][KEY], [QUERIES][VALUE]
    for (u32 i = threadIdx.x; i < KEYS * KEY_PIECES; i += blockDim.x) {
        const u32 row = i / KEY_PIECES, piece = i % KEY_PIECES, position = segment.first_position + first_key + row;
        bool valid = first_key + row < segment.rows;
        u32 entry = valid ? tables[segment.table + position / KV_BLOCK] : 0;
        if (!index_ok(BAD_KV_BLOCK, entry, shape.blocks)) entry = valid = 0;
        const u64 from = ((u64)entry * KV_BLOCK + position % KV_BLOCK) * LATENT_KEY + piece * 8;
        copy_async_16(own + swizzled<LATENT_KEY>(row, piece), keys + from, valid);
    }
    LatentQueries all = {q, dout, lse, delta, shape,
                         Queries(segments, shape, shape.heads, segment, tile, item.piece,
                                 latent_pieces(tile, shape.heads)),
                         0, buffers, fields, 0, 0, nullptr};
    all.fetch(0);
    const float log_scale = scale * LOG2_E;
    const u32 my_key = threadIdx.x / (QUERIES / 4), my_row = threadIdx.x % (QUERIES / 4) * 4; // and the three after it
    float sum[2][LATENT_KEY / TEAM / 8][4] = {};
    bool more = true;
    for (u32 buffer = 0; more; buffer ^= num_buffers - 1) {
        copy_async_wait<0>();
        __syncthreads();
        more = all.next();
        const bool copies = more && num_buffers > 1;
        if (copies) all.enter(buffer ^ 1);
        auto copy = [&](u32 i) {
            if (copies && i < all.COPIES) all.copy(i);
        };
        const bf16 *rows = buffers + buffer * LatentQueries::BUFFER, *douts = rows + QUERIES * LATENT_KEY;
        const Fields& of = fields[buffer];
        // Later rows see no fewer keys.
        if (first_key < of.bound[QUERIES - 1]) {
            float* to = partials + warp * PARTIAL;
            const u32 key_piece = part * (KEY_PIECES / TEAM), piece = part * (VALUE_PIECES / TEAM);
            if (has_keys)
                partial_dot<LATENT_KEY / STEP / TEAM, LATENT_KEY>(to, own, key_piece, rows, key_piece, copy);
            else
                partial_dot<LATENT_VALUE / STEP / TEAM, LATENT_VALUE>(to, own, LATENT_FIRST / 8 + piece, douts, piece,
                                                                      copy);
            __syncthreads();
            float p[4], d[4];
            whole_dot(p, partials + my_key * PARTIAL_PITCH + my_row);
            whole_dot(d, partials + TEAM * PARTIAL + my_key * PARTIAL_PITCH + my_row);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 row = my_row + i;
                const bool sees = first_key + my_key < of.bound[row];
                p[i] = sees ? exp2_fast(fma(p[i], log_scale, -of.log_sum[row])) : 0.0f;
                d[i] = p[i] * (d[i] - of.delta[row]);
            }
            const u32 at = swizzled<UNIT>(my_key, my_row / 8) + my_row % 8;
            store4(weights + at, p);
            store4(slopes + at, d);
            __syncthreads();
            if (has_keys)
                latent_sum<2, QUERIES / STEP, LATENT_KEY, LATENT_KEY / TEAM>(sum, slopes, rows, key_piece);
            else
                latent_sum<2, QUERIES / STEP, LATENT_VALUE, LATENT_VALUE / TEAM>(sum, weights, douts, piece);
        } else
            for (u32 i = 0; i < all.COPIES; i++) copy(i);
        copy_async_commit();
        if (more && num_buffers == 1) {
            __syncthreads();
            all.fetch(0);
        }
    }
    // The first piece's results go where the sums will be.
    const u32 part_row = tile.first_part + (item.piece - 1) * UNIT + blockIdx.x % 2 * KEYS;
    float* to = item.piece == 0 ? dkv + (u64)(segment.first_row + first_key) * 2 * LATENT_KEY
                                : parts + (u64)part_row * 2 * LATENT_KEY;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 key = i / 2 * TILE + lane / 4 + 8 * (i % 2);
        if (first_key + key >= segment.rows) continue;
        float* row = to + (u64)key * 2 * LATENT_KEY + lane % 4 * 2;
        if (has_keys) {
            row += part * (LATENT_KEY / TEAM);
#pragma unroll
            for (u32 n = 0; n < LATENT_KEY / TEAM / 8; n++)
                *(float2*)(row + n * 8) =
                    make_float2(sum[i / 2][n][2 * (i % 2)] * scale, sum[i / 2][n][2 * (i % 2) + 1] * scale);
        } else {
            row += LATENT_KEY;
#pragma unroll
            for (u32 n = 0; n < 2; n++)
                *(float2*)(row + part * (LATENT_FIRST / TEAM) + n * 8) = make_float2(0.0f, 0.0f);
            row += LATENT_FIRST + part * (LATENT_VALUE / TEAM);
#pragma unroll
            for (u32 n = 0; n < LATENT_VALUE / TEAM / 8; n++)
                *(float2*)(row + n * 8) = make_float2(sum[i / 2][n][2 * (i % 2)], sum[i / 2][n][2 * (i % 2) + 1]);
        }
    }
}

/// Adds the pieces' results in order; rows of no segment become zeros. A warp has a row.
extern "C" __global__ void __launch_bounds__(128)
    attention_backward_latent_join(const u32* segments, const u32* of_row, const u32* firsts, const Tile* tiles,
                                   const float* parts, float* dq, float* dkv, u32 rows, u32 heads) {
    begin();
    const u32 row = blockIdx.x * 4 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    float4* to = (float4*)(dkv + (u64)row * 2 * LATENT_KEY);
    if (of_row[row] == 0) {
        const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float4* to_dq = (float4*)(dq + (u64)row * heads * LATENT_KEY);
        for (u32 i = lane; i < LATENT_KEY / 2; i += WARP) to[i] = zero;
        for (u32 i = lane; i < heads * (LATENT_KEY / 4); i += WARP) to_dq[i] = zero;
        return;
    }
    const u32 s = of_row[row] - 1, key = row - segments[(u64)s * SEGMENT_FIELDS];
    const Tile tile = tiles[firsts[s] + key / UNIT];
    const u32 pieces = latent_pieces(tile, heads);
    const float4* part = (const float4*)(parts + (u64)(tile.first_part + key % UNIT) * 2 * LATENT_KEY);
    for (u32 i = lane; i < LATENT_KEY / 2 && pieces > 1; i += WARP) {
        float4 sum = to[i];
#pragma unroll 4
        for (u32 piece = 1; piece < pieces; piece++) {
            const float4 x = part[(piece - 1) * (UNIT * LATENT_KEY / 2) + i];
            sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
        }
        to[i] = sum;
    }
}

// The first block of the queries' kernel makes the plan for the keys' kernel, which is next.
#define LATENT_QUERIES(ROWS, TILES, TEAMS)                                                                               \
    extern "C" __global__ void __launch_bounds__(128 * TEAMS, 1) attention_backward_latent_queries_##ROWS(               \
        const bf16* q, const bf16* keys, const u32* segments, const u32* tables, const bf16* out, const float* lse,      \
        const bf16* dout, float* delta, float* dq, u32* counts, u32* of_row, u32* firsts, Tile* tiles, Item* items,      \
        ATTENTION_SHAPE, u32 num_buffers, float scale) {                                                                 \
        begin();                                                                                                         \
        if (blockIdx.x > 0)                                                                                              \
            latent_queries<TILES, TEAMS>(q, keys, segments, tables, out, lse, dout, delta, dq, blockIdx.x - 1, SHAPE,    \
                                         num_buffers, scale);                                                            \
        else                                                                                                             \
            make_latent_plan(segments, Plan{counts, of_row, firsts, tiles, items, 0, 0}, SHAPE);                         \
    }
LATENT_QUERIES(32, 2, 1)
LATENT_QUERIES(64, 2, 2)

/// Two blocks of neighbouring numbers take an item: the first keys of its tile, the others.
extern "C" __global__ void __launch_bounds__(256, 1) attention_backward_latent_keys(
    const bf16* q, const bf16* keys, const u32* segments, const u32* tables, const float* lse, const bf16* dout,
    const float* delta, const u32* counts, const Tile* tiles, const Item* items, float* parts, float* dkv,
    ATTENTION_SHAPE, u32 num_buffers, float scale) {
    begin();
    latent_keys(q, keys, segments, tables, lse, dout, delta, counts, tiles, items, parts, dkv, SHAPE, num_buffers,
                scale);
}
