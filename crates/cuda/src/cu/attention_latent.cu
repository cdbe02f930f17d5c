// Causal attention over latents, in bf16: all heads have one key of 576 elements, whose last 512 are the value. Keys
// are read once for scores and sums, from one of the cache's two copies.
//
// A row's result is a function of its own keys alone, to the bit. Within a chunk of 512 keys, units of 64 are taken in
// ascending order: scores, each one chain over the key's elements; the largest of them and of those before; the sums so
// far are scaled to it, and those of the unit are added by the same chain of products. A unit in which a row has no key
// adds nothing: its largest stays, and products with zeros change no sum but the sign of a zero, which the result does
// not keep. Chunks are joined in ascending order (attention_join.cuh), in one block or by a kernel of their own. The
// number of a block's rows and buffers is a matter of speed. The first 64 columns of the output become zeros.

/// Chains of a score.
#define LATENT_CHAINS 2

/// A block takes up to ROWS rows of a segment from `first` on. With `chunks` > 0, it takes one `chunk` of a segment of
/// one row, and the unfinished results go to `parts`.
template <int TILES, int TEAMS>
__device__ __forceinline__ void latent_rows(const bf16* q, const bf16* keys, const Segment& segment, const u32* tables,
                                            bf16* out, float* lse, float* parts, const Shape& shape, u32 first,
                                            u32 chunks, u32 chunk, u32 num_buffers, float scale) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    typedef LatentRows<TILES, TEAMS> Rows;
    const u32 warp = own_warp(), lane = threadIdx.x % WARP, team = warp / TEAM, part = warp % TEAM;
    const Rows rows(segment, shape, first);
    u32 begin = 0, end = (rows.num_keys + UNIT - 1) / UNIT;
    if (chunks > 0) begin = chunk * CHUNK_UNITS, end = min(end, begin + CHUNK_UNITS);
    if (begin >= end) return;
    bf16* own = (bf16*)dynamic_shared;                      // [ROWS][KEY]
    bf16* weights = own + Rows::ROWS * LATENT_KEY;          // [ROWS][UNIT]
    float4* tops = (float4*)(weights + Rows::ROWS * UNIT);  // [ROWS], a number of each warp
    float4* sums = tops + Rows::ROWS;                       // [ROWS]
    fetch_own<LATENT_KEY, Rows::ROWS, TEAMS * TEAM>(own, q + rows.place * LATENT_KEY, LATENT_KEY, rows.valid);
    LatentStream<TEAMS * TEAM> stream(keys, tables + segment.table, shape, rows.num_keys, begin, num_buffers,
                                      (bf16*)(sums + Rows::ROWS));
    own += team * TILES * TILE * LATENT_KEY;

    // The chunks before; in local memory, as it is touched once a chunk.
    volatile float before[TILES][2][LATENT_VALUE / TEAM / 4 + 2];
    float o[TILES][LATENT_VALUE / TEAM / 8][4] = {};
    Sum sum[TILES][2];
#pragma unroll
    for (u32 i = 0; i < 2 * TILES; i++) sum[i / 2][i % 2] = {MINUS_INFINITY, 0.0f};
    for (u32 unit = begin; unit < end; unit++) {
        const bool copies = stream.arrive(unit, end);
        const bf16* here = stream.unit_at(unit);
        if (unit * UNIT < rows.team_keys) {
            float s[TILES][2][4], keep[TILES][2];
            latent_dot<LATENT_CHAINS, LATENT_KEY / STEP, LATENT_KEY, LATENT_KEY, 0, 0>(
                s, own, here + part * STEP * LATENT_KEY, [&](u32 i) {
                    if (copies) stream.copy(i);
                });
#pragma unroll
            for (u32 i = 0; i < 2 * TILES; i++) {
                const u32 tile = i / 2, r = i % 2, seen = seen_of(rows.row_keys[tile][r], unit);
                float top = MINUS_INFINITY;
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    float& x = s[tile][j / 2][2 * r + j % 2];
                    if (part * STEP + j / 2 * 8 + lane % 4 * 2 + j % 2 >= seen) x = MINUS_INFINITY;
                    top = fmaxf(top, x);
                }
                top = row_max(top);
                if (lane % 4 == 0) ((float*)&tops[rows.row(tile, r)])[part] = top;
            }
            team_barrier(team);
#pragma unroll
            for (u32 i = 0; i < 2 * TILES; i++) {
                const u32 tile = i / 2, r = i % 2, row = rows.row(tile, r);
                const float4 top = tops[row];
                Sum& own_sum = sum[tile][r];
                const float max = fmaxf(own_sum.max, fmaxf(fmaxf(top.x, top.y), fmaxf(top.z, top.w)) * scale);
                keep[tile][r] = max == own_sum.max ? 1.0f : exp2_fast(own_sum.max - max);
                own_sum.max = max;
                const float shift = max == MINUS_INFINITY ? 0.0f : max;
                float p[4];
#pragma unroll
                for (u32 j = 0; j < 4; j++) p[j] = exp2_fast(fma(s[tile][j / 2][2 * r + j % 2], scale, -shift));
                const float fresh = row_sum((p[0] + p[1]) + (p[2] + p[3]));
                if (lane % 4 == 0) ((float*)&sums[row])[part] = fresh;
                put_weights(weights, row, part * STEP + lane % 4 * 2, p[0], p[1]);
                put_weights(weights, row, part * STEP + 8 + lane % 4 * 2, p[2], p[3]);
                if (keep[tile][r] != 1.0f)
#pragma unroll
                    for (u32 j = 0; j < LATENT_VALUE / TEAM / 4; j++) {
                        float& x = o[tile][j / 2][2 * r + j % 2];
                        x = x * keep[tile][r];
                    }
            }
            team_barrier(team);
#pragma unroll
            for (u32 i = 0; i < 2 * TILES; i++) {
                const float4 fresh = sums[rows.row(i / 2, i % 2)];
                float& x = sum[i / 2][i % 2].sum;
                x = fma(x, keep[i / 2][i % 2], (fresh.x + fresh.y) + (fresh.z + fresh.w));
            }
            latent_sum<TILES, UNIT / STEP, LATENT_KEY, LATENT_VALUE / TEAM>(
                o, weights + team * TILES * TILE * UNIT, here, LATENT_FIRST / 8 + part * (VALUE_PIECES / TEAM));
        }
        else
            for (u32 i = 0; copies && i < stream.COPIES; i++) stream.copy(i);
        stream.leave(unit, end);
        const bool more = unit + 1 < end;
        if (chunks > 0 || (more && unit % CHUNK_UNITS != CHUNK_UNITS - 1)) continue;
        // The chunk's end.
#pragma unroll
        for (u32 i = 0; i < 2 * TILES; i++) {
            const u32 tile = i / 2, r = i % 2, at = unit / CHUNK_UNITS;
            volatile float* b = before[tile][r];
            if (at > 0) {
                Sum total = {b[0], b[1]};
                float keep = 1.0f, add = 0.0f;
                const bool sees = rows.row_keys[tile][r] > at * ATTENTION_CHUNK;
                if (sees) join(total, sum[tile][r], keep, add);
                sum[tile][r] = total;
#pragma unroll
                for (u32 j = 0; j < LATENT_VALUE / TEAM / 4; j++) {
                    float& x = o[tile][j / 2][2 * r + j % 2];
                    const float t = b[2 + j];
                    x = sees ? joined(t, keep, x, add) : t;
                }
            }
            if (more) {
                b[0] = sum[tile][r].max;
                b[1] = sum[tile][r].sum;
                sum[tile][r] = {MINUS_INFINITY, 0.0f};
#pragma unroll
                for (u32 j = 0; j < LATENT_VALUE / TEAM / 4; j++) {
                    float& x = o[tile][j / 2][2 * r + j % 2];
                    b[2 + j] = x;
                    x = 0.0f;
                }
            }
        }
    }
    const u64 all_parts = (u64)shape.segments * shape.heads * chunks;
#pragma unroll
    for (u32 i = 0; i < 2 * TILES; i++) {
        const u32 tile = i / 2, r = i % 2, row = rows.row(tile, r);
        if (rows.row_keys[tile][r] == 0) continue;
        if (chunks > 0) {
            const u64 index = ((u64)blockIdx.x * shape.heads + first + row) * chunks + chunk;
            float* to = parts + index * LATENT_VALUE + part * (LATENT_VALUE / TEAM) + lane % 4 * 2;
#pragma unroll
            for (u32 n = 0; n < LATENT_VALUE / TEAM / 8; n++)
                *(float2*)(to + n * 8) = make_float2(o[tile][n][2 * r], o[tile][n][2 * r + 1]);
            if (part == 0 && lane % 4 == 0) ((Sum*)(parts + all_parts * LATENT_VALUE))[index] = sum[tile][r];
            continue;
        }
        const float inverse = 1.0f / sum[tile][r].sum;
        u32* to = (u32*)(out + (rows.place + row) * LATENT_KEY) + lane % 4;
        to[part * 8] = 0;
        to[part * 8 + 4] = 0;
        to += (LATENT_FIRST + part * (LATENT_VALUE / TEAM)) / 2;
        // Zeros lose their signs.
#pragma unroll
        for (u32 n = 0; n < LATENT_VALUE / TEAM / 8; n++)
            to[n * 4] = pack_bf16(o[tile][n][2 * r] * inverse + 0.0f, o[tile][n][2 * r + 1] * inverse + 0.0f);
        if (lse && part == 0 && lane % 4 == 0) lse[rows.place + row] = log_sum_exp(sum[tile][r]);
    }
}

/// Joins the chunks' parts of decoded rows: a thread has four elements of a row.
extern "C" __global__ void __launch_bounds__(128)
    attention_latent_join(const float* parts, const u32* segments, bf16* out, float* lse, ATTENTION_SHAPE, u32 chunks) {
    begin();
    const Shape shape = SHAPE;
    const u64 item = (u64)blockIdx.x * blockDim.x + threadIdx.x, pairs = (u64)shape.segments * shape.heads;
    const u64 pair = item / (LATENT_KEY / 4);
    const u32 at = item % (LATENT_KEY / 4) * 4;
    if (pair >= pairs) return;
    const Segment segment = segment_at(segments, pair / shape.heads);
    if (segment.rows == 0 || !segment_ok(segment, shape)) return;
    const u64 place = (u64)segment.first_row * shape.heads + pair % shape.heads;
    uint2* to = (uint2*)(out + place * LATENT_KEY + at);
    if (at < LATENT_FIRST) {
        *to = make_uint2(0, 0);
        return;
    }
    const u32 mine = segment.first_position / ATTENTION_CHUNK + 1;
    const float4* from = (const float4*)(parts + pair * chunks * LATENT_VALUE + at - LATENT_FIRST);
    const Sum* sums = (const Sum*)(parts + pairs * chunks * LATENT_VALUE) + pair * chunks;
    float4 o = from[0];
    Sum sum = sums[0];
#pragma unroll 4
    for (u32 chunk = 1; chunk < mine; chunk++) {
        float keep, add;
        join(sum, sums[chunk], keep, add);
        const float4 with = from[chunk * (LATENT_VALUE / 4)];
        o = make_float4(joined(o.x, keep, with.x, add), joined(o.y, keep, with.y, add),
                        joined(o.z, keep, with.z, add), joined(o.w, keep, with.w, add));
    }
    const float inverse = 1.0f / sum.sum;
    *to = make_uint2(pack_bf16(o.x * inverse + 0.0f, o.y * inverse + 0.0f),
                     pack_bf16(o.z * inverse + 0.0f, o.w * inverse + 0.0f));
    if (lse && at == LATENT_FIRST) lse[place] = log_sum_exp(sum);
}

// Decode: blocks of a segment of one row, of its heads by ROWS, in one chunk (`chunks` > 0) or all. Tiles: blocks of
// ROWS rows of segments of any number of rows.
#define LATENT_KERNELS(ROWS, TILES, TEAMS, RESIDENT)                                                                     \
    extern "C" __global__ void __launch_bounds__(128 * TEAMS, RESIDENT) attention_latent_decode_##ROWS(                  \
        const bf16* q, const bf16* keys, const u32* segments, const u32* tables, bf16* out, float* lse, float* parts,    \
        ATTENTION_SHAPE, u32 chunks, u32 num_buffers, float scale) {                                                     \
        begin();                                                                                                         \
        const Shape shape = SHAPE;                                                                                       \
        const Segment segment = segment_at(segments, blockIdx.x);                                                        \
        if (segment.rows == 0 || !index_ok(BAD_SEGMENT, segment.rows, 2) || !segment_ok(segment, shape)) return;         \
        latent_rows<TILES, TEAMS>(q, keys, segment, tables, out, lse, parts, shape, blockIdx.y * ROWS, chunks,           \
                                  blockIdx.z, num_buffers, scale);                                                       \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128 * TEAMS, RESIDENT) attention_latent_tiles_##ROWS(                   \
        const bf16* q, const bf16* keys, const u32* segments, const u32* tables, bf16* out, float* lse,                  \
        ATTENTION_SHAPE, u32 num_buffers, float scale) {                                                                 \
        begin();                                                                                                         \
        const Shape shape = SHAPE;                                                                                       \
        u32 of, place;                                                                                                   \
        if (!find_tile(segments, shape.segments, shape.heads, ROWS, blockIdx.x, of, place)) return;                      \
        const Segment segment = segment_at(segments, of);                                                                \
        if (!segment_ok(segment, shape)) return;                                                                         \
        const u32 tiles = (segment.rows * shape.heads + ROWS - 1) / ROWS;                                                \
        latent_rows<TILES, TEAMS>(q, keys, segment, tables, out, lse, nullptr, shape, (tiles - 1 - place) * ROWS, 0, 0,  \
                                  num_buffers, scale);                                                                   \
    }
LATENT_KERNELS(16, 1, 1, 2)
LATENT_KERNELS(32, 2, 1, 1)
LATENT_KERNELS(64, 2, 2, 1)
