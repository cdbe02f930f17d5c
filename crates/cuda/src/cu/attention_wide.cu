// Causal attention with heads of 256 elements, in bf16. Units, chunks and their joins are those of attention.cu. Here
// too a row's result is a function of its own keys alone, to the bit: decode is a tile of one warp.

/// Columns of the values that are taken together, in eights.
#define GROUP 8

/// A block takes a tile of 16 rows a warp, of one segment and key-value head. With `chunks` > 0, it takes one `chunk`,
/// and the unfinished results of the segment's row go to `parts` at `part`.
template <int WARPS>
__device__ __forceinline__ void wide_rows(const bf16* q, const bf16* keys, const bf16* values, const Segment& segment,
                                          const u32* tables, bf16* out, float* lse, float* parts, const Shape& shape,
                                          u32 kv_head, u32 place, u32 chunks, u32 chunk, float scale) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    const TileRows<WARPS> tile(segment, shape, kv_head, place);
    u32 begin = tile.first_key / UNIT, end = (tile.num_keys + UNIT - 1) / UNIT;
    if (chunks > 0) begin = max(begin, chunk * CHUNK_UNITS), end = min(end, (chunk + 1) * CHUNK_UNITS);
    if (begin >= end) return;
    bf16* own = (bf16*)dynamic_shared; // [WARPS][TILE][WIDE]
    bf16* unit_keys = own + WARPS * TILE * WIDE;
    bf16* unit_values = unit_keys + UNIT * WIDE;
    WideStream<UNIT, WARPS> stream(tables + segment.table, shape, kv_head, tile.first_key, tile.num_keys, begin);
    fetch_own<WARPS>(own, q, tile);
    own += threadIdx.x / WARP * TILE * WIDE;
    stream.fetch(unit_keys, keys, begin);
    copy_async_commit();
    stream.fetch(unit_values, values, begin);
    copy_async_commit();

    // The chunks before; in local memory, as it is touched once a chunk.
    volatile float before[2][WIDE / 4 + 2];
    float o[WIDE / 8][4] = {};
    Sum sum[2] = {};
    for (u32 unit = begin; unit < end; unit++) {
        const bool works = unit * UNIT < tile.warp_keys;
        u32 weights[2][2][4];
        float keep[2], add[2];
        bool replaces[2], joins[2];
        copy_async_wait<1>();
        __syncthreads();
        if (works) {
            float s[2][4][4];
            wide_dot<2>(s, own, unit_keys);
            const Sum fresh[2] = {
                unit_weights<0>(s, seen_of(tile.row_from[0], unit), seen_of(tile.row_keys[0], unit), scale),
                unit_weights<1>(s, seen_of(tile.row_from[1], unit), seen_of(tile.row_keys[1], unit), scale)};
            as_left(weights[0], s[0]);
            as_left(weights[1], s[1]);
#pragma unroll
            for (u32 r = 0; r < 2; r++) {
                // Replaces what units before the row's window left.
                replaces[r] = unit % CHUNK_UNITS == 0 || unit == tile.row_from[r] / UNIT;
                joins[r] = !replaces[r] && tile.row_keys[r] > unit * UNIT;
                if (replaces[r]) sum[r] = fresh[r];
                else if (joins[r]) join(sum[r], fresh[r], keep[r], add[r]);
            }
        }
        copy_async_wait<0>();
        __syncthreads();
        stream.enter(unit + 1);
        if (unit + 1 < end) stream.fetch(unit_keys, keys, unit + 1);
        copy_async_commit();
        if (works) {
#pragma unroll
            for (u32 first = 0; first < WIDE / 8; first += GROUP) {
                float fresh[GROUP][4] = {};
                sum_columns<GROUP>(fresh, weights[0], unit_values, first);
                sum_columns<GROUP>(fresh, weights[1], unit_values + HALF * WIDE, first);
#pragma unroll
                for (u32 i = 0; i < GROUP * 4; i++) {
                    const u32 r = i % 4 / 2;
                    float& x = o[first + i / 4][i % 4];
                    if (replaces[r]) x = fresh[i / 4][i % 4];
                    else if (joins[r]) x = joined(x, keep[r], fresh[i / 4][i % 4], add[r]);
                    // Else the compiler joins the groups last, and has no registers for all of them.
                    asm volatile("" : "+f"(x));
                }
            }
        }
        __syncthreads();
        if (unit + 1 < end) stream.fetch(unit_values, values, unit + 1);
        copy_async_commit();
        const bool more = (unit + 1) * UNIT < tile.warp_keys;
        if (!works || chunks > 0 || (more && unit % CHUNK_UNITS != CHUNK_UNITS - 1)) continue;
        // The chunk's end.
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            if (unit / CHUNK_UNITS > tile.row_from[r] / ATTENTION_CHUNK) {
                Sum total = {before[r][0], before[r][1]};
                float keep = 1.0f, add = 0.0f;
                const bool sees = tile.row_keys[r] > unit / CHUNK_UNITS * ATTENTION_CHUNK;
                if (sees) join(total, sum[r], keep, add);
                sum[r] = total;
#pragma unroll
                for (u32 i = 0; i < WIDE / 4; i++) {
                    float& x = o[i / 2][2 * r + i % 2];
                    const float t = before[r][2 + i];
                    x = sees ? joined(t, keep, x, add) : t;
                }
            }
            if (more) {
                before[r][0] = sum[r].max;
                before[r][1] = sum[r].sum;
#pragma unroll
                for (u32 i = 0; i < WIDE / 4; i++) before[r][2 + i] = o[i / 2][2 * r + i % 2];
            }
        }
    }
    const u32 lane = threadIdx.x % WARP;
    const u64 places = (u64)shape.segments * shape.heads * chunks;
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        if (tile.row_keys[r] == 0) continue;
        if (chunks > 0) {
            const u64 head = tile.places[r] - (u64)segment.first_row * shape.heads;
            const u64 part = ((u64)blockIdx.x * shape.heads + head) * chunks + chunk;
            float* to = parts + part * WIDE + lane % 4 * 2;
#pragma unroll
            for (u32 n = 0; n < WIDE / 8; n++) *(float2*)(to + n * 8) = make_float2(o[n][2 * r], o[n][2 * r + 1]);
            if (lane % 4 == 0) ((Sum*)(parts + places * WIDE))[part] = sum[r];
            continue;
        }
        const float inverse = 1.0f / sum[r].sum;
        u32* to = (u32*)(out + tile.places[r] * WIDE) + lane % 4;
#pragma unroll
        for (u32 n = 0; n < WIDE / 8; n++) to[n * 4] = pack_bf16(o[n][2 * r] * inverse, o[n][2 * r + 1] * inverse);
        if (lse && lane % 4 == 0) lse[tile.places[r]] = log_sum_exp(sum[r]);
    }
}

/// A block takes up to 16 heads of a segment of one row, in one chunk (`chunks` > 0) or all.
extern "C" __global__ void __launch_bounds__(32)
    attention_wide_decode(const bf16* q, const bf16* keys, const bf16* values, const u32* segments, const u32* tables,
                          bf16* out, float* lse, float* parts, ATTENTION_SHAPE, u32 chunks, float scale) {
    begin();
    const Shape shape = SHAPE;
    const Segment segment = segment_at(segments, blockIdx.x);
    if (segment.rows == 0 || !index_ok(BAD_SEGMENT, segment.rows, 2) || !segment_ok(segment, shape)) return;
    const u32 tiles = (shape.group() + TILE - 1) / TILE;
    wide_rows<1>(q, keys, values, segment, tables, out, lse, parts, shape, blockIdx.y / tiles, blockIdx.y % tiles,
                 chunks, blockIdx.z, scale);
}

extern "C" __global__ void __launch_bounds__(128)
    attention_wide_join(const float* parts, const u32* segments, bf16* out, float* lse, ATTENTION_SHAPE, u32 chunks) {
    begin();
    join_parts<WIDE>(parts, segments, out, lse, SHAPE, chunks);
}

extern "C" __global__ void __launch_bounds__(128, 2)
    attention_wide_tiles(const bf16* q, const bf16* keys, const bf16* values, const u32* segments, const u32* tables,
                         bf16* out, float* lse, ATTENTION_SHAPE, float scale) {
    begin();
    const Shape shape = SHAPE;
    u32 of, place;
    if (!find_tile(segments, shape.segments, shape.group(), 4 * TILE, blockIdx.x / shape.kv_heads, of, place)) return;
    const Segment segment = segment_at(segments, of);
    if (!segment_ok(segment, shape)) return;
    wide_rows<4>(q, keys, values, segment, tables, out, lse, nullptr, shape, blockIdx.x % shape.kv_heads, place, 0, 0,
                 scale);
}
