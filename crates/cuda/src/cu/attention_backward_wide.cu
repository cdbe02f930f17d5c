// Gradients of attention with heads of 256 elements, in bf16: what attention_backward.cu does, with the same plan,
// tiles and pieces. Sums of keys and of values do not fit one warp's registers together: a block has one or the other,
// and computes the scores for itself.

// ---- dQ -------------------------------------------------------------------------------------------------------------

/// The gradient of queries: `backward_queries`, with half units of values before those of keys.
__device__ __forceinline__ void wide_queries(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,
                                             const u32* tables, const bf16* out, const float* lse, const bf16* dout,
                                             float* delta, float* dq, u32 block, const Shape& shape, float scale) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 index = block / shape.kv_heads, kv_head = block % shape.kv_heads;
    u32 of, place;
    if (!find_tile(segments, shape.segments, shape.group(), 4 * TILE, index, of, place)) return;
    const Segment segment = segment_at(segments, of);
    if (!segment_ok(segment, shape)) return;
    const TileRows<4> tile(segment, shape, kv_head, place);

    bf16* rows = (bf16*)dynamic_shared; // [UNIT][WIDE]
    bf16* douts = rows + UNIT * WIDE;
    bf16* half_keys = douts + UNIT * WIDE; // [HALF][WIDE]
    bf16* half_values = half_keys + HALF * WIDE;
    const u32 begin = tile.first_key / HALF, end = (tile.num_keys + HALF - 1) / HALF;
    WideStream<HALF, 4> stream(tables + segment.table, shape, kv_head, tile.first_key, tile.num_keys, begin);
    fetch_own<4>(rows, q, tile);
    fetch_own<4>(douts, dout, tile);
    rows += warp * TILE * WIDE, douts += warp * TILE * WIDE;
    stream.fetch(half_values, values, begin);
    copy_async_commit();
    stream.fetch(half_keys, keys, begin);
    copy_async_commit();

    const float log_scale = scale * LOG2_E;
    float log_sum[2], deltas[2];
    {
        u32 x[WIDE / STEP][4], y[WIDE / STEP][4];
        tile.template read<WIDE>(x, out);
        tile.template read<WIDE>(y, dout);
        deltas[0] = row_dot<WIDE, 0>(x, y);
        deltas[1] = row_dot<WIDE, 1>(x, y);
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        log_sum[r] = tile.row_keys[r] ? lse[tile.places[r]] * LOG2_E : 0.0f;
        if (tile.row_keys[r] && lane % 4 == 0) delta[tile.places[r]] = deltas[r];
    }
    float sum[WIDE / 8][4] = {};
    for (u32 step = begin; step < end; step++) {
        const u32 first_key = step * HALF;
        const bool works = first_key < tile.warp_keys;
        float s[1][4][4], d[1][4][4];
        copy_async_wait<1>();
        __syncthreads();
        if (works) wide_dot<1>(d, douts, half_values);
        copy_async_wait<0>();
        __syncthreads();
        stream.enter(step + 1);
        if (step + 1 < end) stream.fetch(half_values, values, step + 1);
        copy_async_commit();
        if (works) {
            wide_dot<1>(s, rows, half_keys);
#pragma unroll
            for (u32 i = 0; i < 16; i++) {
                const u32 n = i / 4, r = i % 4 / 2;
                const u32 key = first_key + n * 8 + lane % 4 * 2 + i % 2;
                const float p = exp2_fast(fma(s[0][n][i % 4], log_scale, -log_sum[r]));
                const bool sees = key < tile.row_keys[r] && key >= tile.row_from[r];
                d[0][n][i % 4] = sees ? p * (d[0][n][i % 4] - deltas[r]) : 0.0f;
            }
            u32 left[2][4];
            as_left(left, d[0]);
            sum_half<WIDE>(sum, left, half_keys);
        }
        __syncthreads();
        if (step + 1 < end) stream.fetch(half_keys, keys, step + 1);
        copy_async_commit();
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        if (tile.row_keys[r] == 0) continue;
        float* to = dq + tile.places[r] * WIDE + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < WIDE / 8; n++)
            *(float2*)(to + n * 8) = make_float2(sum[n][2 * r] * scale, sum[n][2 * r + 1] * scale);
    }
}

// ---- dK and dV ------------------------------------------------------------------------------------------------------

/// The gradient of keys or of values: `backward_keys`, in steps of 32 rows. Of a step's queries and gradients, those
/// that are used once come first: for dK the gradients, for dV the queries.
template <bool OF_KEYS>
__device__ __forceinline__ void wide_keys(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,
                                          const u32* tables, const float* lse, const bf16* dout, const float* delta,
                                          const u32* counts, const Tile* tiles, const Item* items, float* parts,
                                          float* dkv, u32 block, const Shape& shape, float scale) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, kv_head = block % shape.kv_heads;
    if (block / shape.kv_heads >= counts[0]) return;
    const Item item = items[block / shape.kv_heads];
    const Tile tile = tiles[item.tile];
    const Segment segment = segment_at(segments, tile.segment);
    const u32 first_key = tile.key;
    const Group group(shape.group());

    bf16* own = (bf16*)dynamic_shared;                  // [keys, values][UNIT][WIDE]
    bf16* rows = own + 2 * UNIT * WIDE;                 // [queries, douts][HALF][WIDE]
    float* sums = (float*)(rows + 2 * HALF * WIDE);     // [2][HALF] log-sum-exps
    float* deltas = sums + 2 * HALF;                    // [2][HALF]
    u32* bounds = (u32*)(deltas + 2 * HALF);            // [2][HALF] own keys that a row sees
    u32* froms = bounds + 2 * HALF;                     // [2][HALF] own keys before the first that a row sees
#pragma unroll 4
    for (u32 row = warp; row < UNIT; row += 4) {
        const u32 position = segment.first_position + first_key + row;
        bool valid = first_key + row < segment.rows;
        u32 entry = valid ? tables[segment.table + position / KV_BLOCK] : 0;
        if (!index_ok(BAD_KV_BLOCK, entry, shape.blocks)) entry = valid = 0;
        const u64 from = (shape.block(entry, kv_head) * KV_BLOCK + position % KV_BLOCK) * WIDE + lane * 8;
        copy_async_16(own + swizzled<WIDE>(row, lane), keys + from, valid);
        if (OF_KEYS) copy_async_16(own + UNIT * WIDE + swizzled<WIDE>(row, lane), values + from, valid);
    }

    Queries queries(segments, shape, group.size, segment, tile, item.piece, pieces_of(tile, counts[1]));
    // The step under way: log-sum-exp and delta of the thread's row, and the keys that it sees.
    float coming_sum = 0.0f, coming_delta = 0.0f;
    u32 coming_bound = 0, coming_from = 0, coming = queries.row;
    auto place = [&](u32 row) {
        const u32 token = group.token(row);
        return (u64)(queries.first_row + token) * shape.heads + kv_head * group.size + row - token * group.size;
    };
    auto fetch = [&](bf16* to, const bf16* from) {
#pragma unroll
        for (u32 i = 0; i < HALF / 4; i++) {
            const u32 row = i * 4 + warp;
            const bool valid = coming + row < queries.end;
            copy_async_16(to + swizzled<WIDE>(row, lane), from + (valid ? place(coming + row) * WIDE + lane * 8 : 0), valid);
        }
        copy_async_commit();
    };
    auto read_sums = [&]() {
        if (threadIdx.x >= HALF) return;
        const u32 row = coming + threadIdx.x;
        const bool valid = row < queries.end;
        // A missing row has weights of 2^-infinity.
        coming_sum = valid ? lse[place(row)] * LOG2_E : -MINUS_INFINITY;
        coming_delta = valid ? delta[place(row)] : 0.0f;
        coming_bound = queries.bound ? queries.bound : group.token(row) + 1;
        coming_from = shape.from(queries.bound + group.token(row) + 1);
    };
    bf16* first_rows = rows + (OF_KEYS ? HALF * WIDE : 0);
    bf16* second_rows = rows + (OF_KEYS ? 0 : HALF * WIDE);
    const bf16 *first_from = OF_KEYS ? dout : q, *second_from = OF_KEYS ? q : dout;
    read_sums();
    fetch(first_rows, first_from);
    fetch(second_rows, second_from);

    own += warp * TILE * WIDE;
    const u32 my_first = first_key + warp * TILE, my_key = my_first + lane / 4;
    const float log_scale = scale * LOG2_E;
    float sum[WIDE / 8][4] = {};
    bool more = true;
    for (u32 step = 0; more; step ^= 1) {
        const u32 first = step * HALF, column = first + lane % 4 * 2;
        copy_async_wait<1>();
        if (threadIdx.x < HALF) {
            sums[first + threadIdx.x] = coming_sum;
            deltas[first + threadIdx.x] = coming_delta;
            bounds[first + threadIdx.x] = coming_bound;
            froms[first + threadIdx.x] = coming_from;
        }
        __syncthreads();
        // Later rows see no fewer keys, and earlier rows see keys that come earlier.
        const bool works = my_first < bounds[first + HALF - 1] && my_first + TILE > froms[first];
        float p[1][4][4], d[1][4][4];
        if (works) {
            if (OF_KEYS) wide_dot<1>(d, own + UNIT * WIDE, first_rows);
            else wide_dot<1>(p, own, first_rows);
        }
        copy_async_wait<0>();
        __syncthreads();
        coming += HALF;
        if (coming >= queries.end || (coming - queries.row) % UNIT == 0) {
            more = queries.next();
            coming = queries.row;
        }
        if (more) {
            read_sums();
            fetch(first_rows, first_from);
        }
        if (works) {
            if (OF_KEYS) wide_dot<1>(p, own, second_rows);
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                const float2 log_sum = *(const float2*)(sums + column + n * 8);
                const uint2 bound = *(const uint2*)(bounds + column + n * 8);
                const uint2 from = *(const uint2*)(froms + column + n * 8);
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const u32 key = my_key + i / 2 * 8;
                    const bool sees = key < (i % 2 ? bound.y : bound.x) && key >= (i % 2 ? from.y : from.x);
                    const float x = exp2_fast(fma(p[0][n][i], log_scale, i % 2 ? -log_sum.y : -log_sum.x));
                    p[0][n][i] = sees ? x : 0.0f;
                }
                if (OF_KEYS) {
                    const float2 delta_of = *(const float2*)(deltas + column + n * 8);
#pragma unroll
                    for (u32 i = 0; i < 4; i++)
                        p[0][n][i] = p[0][n][i] * (d[0][n][i] - (i % 2 ? delta_of.y : delta_of.x));
                }
            }
            u32 left[2][4];
            as_left(left, p[0]);
            sum_half<WIDE>(sum, left, second_rows);
        }
        __syncthreads();
        if (more) fetch(second_rows, second_from);
    }
    // The first piece's results go where the sums will be.
    float* to = item.piece == 0 ? dkv + (u64)(segment.first_row + first_key) * 2 * shape.kv_heads * WIDE
                                : parts + (u64)(tile.first_part + (item.piece - 1) * UNIT) * 2 * shape.kv_heads * WIDE;
    const float factor = OF_KEYS ? scale : 1.0f;
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        const u32 key = warp * TILE + lane / 4 + 8 * r;
        if (first_key + key >= segment.rows) continue;
        float* row = to + (((u64)key * 2 + (OF_KEYS ? 0 : 1)) * shape.kv_heads + kv_head) * WIDE + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < WIDE / 8; n++)
            *(float2*)(row + n * 8) = make_float2(sum[n][2 * r] * factor, sum[n][2 * r + 1] * factor);
    }
}

// The first block of the queries' kernel makes the plan for the keys' kernel, which is next.
extern "C" __global__ void __launch_bounds__(128, 2) attention_backward_wide_queries(
    const bf16* q, const bf16* keys, const bf16* values, const u32* segments, const u32* tables, const bf16* out,
    const float* lse, const bf16* dout, float* delta, float* dq, PLAN, ATTENTION_SHAPE, float scale) {
    begin();
    if (blockIdx.x > 0)
        wide_queries(q, keys, values, segments, tables, out, lse, dout, delta, dq, blockIdx.x - 1, SHAPE, scale);
    else
        MAKE_PLAN;
}

/// Two blocks of neighbouring numbers take an item: its values, its keys.
extern "C" __global__ void __launch_bounds__(128, 2) attention_backward_wide_keys(
    const bf16* q, const bf16* keys, const bf16* values, const u32* segments, const u32* tables, const float* lse,
    const bf16* dout, const float* delta, const u32* counts, const Tile* tiles, const Item* items, float* parts,
    float* dkv, ATTENTION_SHAPE, float scale) {
    begin();
    const u32 block = blockIdx.x / 2;
    if (blockIdx.x % 2)
        wide_keys<true>(q, keys, values, segments, tables, lse, dout, delta, counts, tiles, items, parts, dkv, block,
                        SHAPE, scale);
    else
        wide_keys<false>(q, keys, values, segments, tables, lse, dout, delta, counts, tiles, items, parts, dkv, block,
                         SHAPE, scale);
}
