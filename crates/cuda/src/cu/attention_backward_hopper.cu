// Gradients of attention by Hopper's own instructions: what attention_backward.cu does, with the same plan, tiles,
// pieces and order of sums over units, four warps multiplying together. On other cards the file is empty.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- dQ -------------------------------------------------------------------------------------------------------------

/// The gradient of queries: `backward_queries` of attention_backward.cu.
template <int D>
__device__ __forceinline__ void hopper_queries(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,
                                               const u32* tables, const bf16* out, const float* lse, const bf16* dout,
                                               float* delta, float* dq, u32 block, const Shape& shape, float scale) {
    const u32 lane = threadIdx.x % WARP, index = block / shape.kv_heads, kv_head = block % shape.kv_heads;
    u32 of, place;
    if (!find_tile(segments, shape.segments, shape.group(), 4 * TILE, index, of, place)) return;
    const Segment segment = segment_at(segments, of);
    if (!segment_ok(segment, shape)) return;
    const TileRows<4> tile(segment, shape, kv_head, place);

    const float log_scale = scale * LOG2_E;
    u32 rows[D / STEP][4], douts[D / STEP][4];
    float log_sum[2], deltas[2];
    {
        u32 outs[D / STEP][4];
        tile.template read<D>(outs, out);
        tile.template read<D>(douts, dout);
        deltas[0] = row_dot<D, 0>(outs, douts);
        deltas[1] = row_dot<D, 1>(outs, douts);
    }
    tile.template read<D>(rows, q);
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        log_sum[r] = tile.row_keys[r] ? lse[tile.places[r]] * LOG2_E : 0.0f;
        if (tile.row_keys[r] && lane % 4 == 0) delta[tile.places[r]] = deltas[r];
    }

    KeyStream<D, 4, true> stream(keys, values, tables + segment.table, shape, kv_head, tile.first_key,
                                 tile.num_keys, aligned_shared());
    float sum[D / 2] = {};
    for (u32 unit = stream.first_unit; unit < stream.num_units; unit++) {
        stream.arrive(unit);
        const u32 keys_at = shared_address(stream.keys_of(unit)), values_at = shared_address(stream.values_of(unit));
        float s[UNIT / 2], d[UNIT / 2];
        begin_products();
#pragma unroll
        for (u32 t = 0; t < D / STEP; t++) multiply_left(s, rows[t], rows_operand(keys_at, t), t > 0);
        end_products();
#pragma unroll
        for (u32 t = 0; t < D / STEP; t++) multiply_left(d, douts[t], rows_operand(values_at, t), t > 0);
        end_products();
        wait_products<1>();
        hold(s);
#pragma unroll
        for (u32 i = 0; i < UNIT / 2; i++) s[i] = exp2_fast(fma(s[i], log_scale, -log_sum[i % 4 / 2]));
        const u32 first_key = unit * UNIT;
        if (min(tile.row_keys[0], tile.row_keys[1]) < first_key + UNIT) {
#pragma unroll
            for (u32 i = 0; i < UNIT / 2; i++)
                if (first_key + i / 4 * 8 + lane % 4 * 2 + i % 2 >= tile.row_keys[i % 4 / 2]) s[i] = 0.0f;
        }
        if (max(tile.row_from[0], tile.row_from[1]) > first_key) {
#pragma unroll
            for (u32 i = 0; i < UNIT / 2; i++)
                if (first_key + i / 4 * 8 + lane % 4 * 2 + i % 2 < tile.row_from[i % 4 / 2]) s[i] = 0.0f;
        }
        wait_products<0>();
        hold(d);
#pragma unroll
        for (u32 i = 0; i < UNIT / 2; i++) d[i] = s[i] * (d[i] - deltas[i % 4 / 2]);
        u32 left[UNIT / STEP][4];
        as_left(left, d);
        hold(sum);
        begin_products();
        sum_unit<D>(sum, left, keys_at);
        end_products();
        wait_products<0>();
        hold(sum);
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        if (tile.row_keys[r] == 0) continue;
        float* to = dq + tile.places[r] * D + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < D / 8; n++)
            *(float2*)(to + n * 8) = make_float2(sum[4 * n + 2 * r] * scale, sum[4 * n + 2 * r + 1] * scale);
    }
}

// ---- dK and dV ------------------------------------------------------------------------------------------------------

/// The gradients of keys and values: `backward_keys` of attention_backward.cu.
template <int D>
__device__ __forceinline__ void hopper_keys(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,
                                            const u32* tables, const float* lse, const bf16* dout, const float* delta,
                                            const u32* counts, const Tile* tiles, const Item* items, float* parts,
                                            float* dkv, const Shape& shape, float scale) {
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, kv_head = blockIdx.x % shape.kv_heads;
    if (blockIdx.x / shape.kv_heads >= counts[0]) return;
    const Item item = items[blockIdx.x / shape.kv_heads];
    const Tile tile = tiles[item.tile];
    const Segment segment = segment_at(segments, tile.segment);
    const u32 first_key = tile.key;
    const Group group(shape.group());

    bf16* own = (bf16*)aligned_shared();            // [keys, values][UNIT][D]
    bf16* buffers = own + 2 * UNIT * D;             // [2][queries, douts][UNIT][D]
    float* sums = (float*)(buffers + 4 * UNIT * D); // [2][UNIT] log-sum-exps
    float* deltas = sums + 2 * UNIT;                // [2][UNIT]
    u32* bounds = (u32*)(deltas + 2 * UNIT);        // [2][UNIT] own keys that a row sees
    u32* froms = bounds + 2 * UNIT; // [2][UNIT] own keys before the first that a row sees
#pragma unroll
    for (u32 i = 0; i < UNIT * D / 8 / 128; i++) {
        const u32 at = i * 128 + threadIdx.x, row = at / (D / 8), piece = at % (D / 8);
        const u32 position = segment.first_position + first_key + row;
        bool valid = first_key + row < segment.rows;
        u32 entry = valid ? tables[segment.table + position / KV_BLOCK] : 0;
        if (!index_ok(BAD_KV_BLOCK, entry, shape.blocks)) entry = valid = 0;
        const u64 from = (shape.block(entry, kv_head) * KV_BLOCK + position % KV_BLOCK) * D + piece * 8;
        copy_async_16(own + in_panels(row, piece), keys + from, valid);
        copy_async_16(own + UNIT * D + in_panels(row, piece), values + from, valid);
    }
    copy_async_commit();

    Queries queries(segments, shape, group.size, segment, tile, item.piece, pieces_of(tile, counts[1]));
    // The unit under way: log-sum-exp and delta of the thread's row, and the keys that it sees.
    float coming_sum = 0.0f, coming_delta = 0.0f;
    u32 coming_bound = 0, coming_from = 0;
    auto fetch = [&](u32 buffer) {
        auto place = [&](u32 row) {
            const u32 token = group.token(row);
            return (u64)(queries.first_row + token) * shape.heads + kv_head * group.size + row - token * group.size;
        };
        bf16* to = buffers + buffer * 2 * UNIT * D;
#pragma unroll
        for (u32 i = 0; i < UNIT * D / 8 / 128; i++) {
            const u32 at = i * 128 + threadIdx.x, row = at / (D / 8), piece = at % (D / 8);
            const bool valid = queries.row + row < queries.end;
            const u64 from = valid ? place(queries.row + row) * D + piece * 8 : 0;
            copy_async_16(to + in_panels(row, piece), q + from, valid);
            copy_async_16(to + UNIT * D + in_panels(row, piece), dout + from, valid);
        }
        if (threadIdx.x < UNIT) {
            const u32 row = queries.row + threadIdx.x;
            const bool valid = row < queries.end;
            // A missing row has weights of 2^-infinity.
            coming_sum = valid ? lse[place(row)] * LOG2_E : -MINUS_INFINITY;
            coming_delta = valid ? delta[place(row)] : 0.0f;
            coming_bound = queries.bound ? queries.bound : group.token(row) + 1;
            coming_from = shape.from(queries.bound + group.token(row) + 1);
        }
        copy_async_commit();
    };

    fetch(0);
    const u32 own_at = shared_address(own);
    const u32 my_key = first_key + warp * TILE + lane / 4;
    const float log_scale = scale * LOG2_E;
    float dk[D / 2] = {}, dv[D / 2] = {};
    bool more = true;
    for (u32 buffer = 0; more; buffer ^= 1) {
        copy_async_wait<0>();
        if (threadIdx.x < UNIT) {
            sums[buffer * UNIT + threadIdx.x] = coming_sum;
            deltas[buffer * UNIT + threadIdx.x] = coming_delta;
            bounds[buffer * UNIT + threadIdx.x] = coming_bound;
            froms[buffer * UNIT + threadIdx.x] = coming_from;
        }
        copied();
        __syncthreads();
        more = queries.next();
        if (more) fetch(buffer ^ 1);
        // Earlier rows see keys that come earlier; the same for all threads.
        if (first_key + UNIT <= froms[buffer * UNIT]) continue;
        const u32 queries_at = shared_address(buffers + buffer * 2 * UNIT * D), douts_at = queries_at + UNIT * D * 2;
        const u32 first = buffer * UNIT, column = first + lane % 4 * 2;
        float p[UNIT / 2], d[UNIT / 2];
        u32 left[UNIT / STEP][4];
        begin_products();
#pragma unroll
        for (u32 t = 0; t < D / STEP; t++) multiply(p, rows_operand(own_at, t), rows_operand(queries_at, t), t > 0);
        end_products();
#pragma unroll
        for (u32 t = 0; t < D / STEP; t++)
            multiply(d, rows_operand(own_at + UNIT * D * 2, t), rows_operand(douts_at, t), t > 0);
        end_products();
        wait_products<1>();
        hold(p);
#pragma unroll
        for (u32 n = 0; n < UNIT / 8; n++) {
            const float2 sum = *(const float2*)(sums + column + n * 8);
#pragma unroll
            for (u32 i = 0; i < 4; i++) p[4 * n + i] = exp2_fast(fma(p[4 * n + i], log_scale, i % 2 ? -sum.y : -sum.x));
        }
        // Later rows see no fewer keys.
        if (first_key + UNIT > bounds[first]) {
#pragma unroll
            for (u32 n = 0; n < UNIT / 8; n++) {
                const uint2 bound = *(const uint2*)(bounds + column + n * 8);
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    if (my_key + i / 2 * 8 >= (i % 2 ? bound.y : bound.x)) p[4 * n + i] = 0.0f;
            }
        }
        if (first_key < froms[first + UNIT - 1]) {
#pragma unroll
            for (u32 n = 0; n < UNIT / 8; n++) {
                const uint2 from = *(const uint2*)(froms + column + n * 8);
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    if (my_key + i / 2 * 8 < (i % 2 ? from.y : from.x)) p[4 * n + i] = 0.0f;
            }
        }
        as_left(left, p);
        hold(dv);
        begin_products();
        sum_unit<D>(dv, left, douts_at);
        end_products();
        wait_products<1>();
        hold(d);
#pragma unroll
        for (u32 n = 0; n < UNIT / 8; n++) {
            const float2 delta_of = *(const float2*)(deltas + column + n * 8);
#pragma unroll
            for (u32 i = 0; i < 4; i++) d[4 * n + i] = p[4 * n + i] * (d[4 * n + i] - (i % 2 ? delta_of.y : delta_of.x));
        }
        u32 slopes[UNIT / STEP][4];
        as_left(slopes, d);
        hold(dk);
        begin_products();
        sum_unit<D>(dk, slopes, queries_at);
        end_products();
        wait_products<0>();
        hold(dk);
        hold(dv);
    }
    // The first piece's results go where the sums will be.
    float* to = item.piece == 0 ? dkv + (u64)(segment.first_row + first_key) * 2 * shape.kv_heads * D
                                : parts + (u64)(tile.first_part + (item.piece - 1) * UNIT) * 2 * shape.kv_heads * D;
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        const u32 key = warp * TILE + lane / 4 + 8 * r;
        if (first_key + key >= segment.rows) continue;
        float* row = to + ((u64)key * 2 * shape.kv_heads + kv_head) * D + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < D / 8; n++) {
            *(float2*)(row + n * 8) = make_float2(dk[4 * n + 2 * r] * scale, dk[4 * n + 2 * r + 1] * scale);
            *(float2*)(row + shape.kv_heads * D + n * 8) = make_float2(dv[4 * n + 2 * r], dv[4 * n + 2 * r + 1]);
        }
    }
}
#endif

// The first block of the queries' kernel makes the plan for the keys' kernel, which is next.
#define HOPPER_KERNELS(D, RESIDENT, KEYS_RESIDENT)                                                                       \
    extern "C" __global__ void __launch_bounds__(128, RESIDENT) attention_backward_hopper_queries_##D(                   \
        const bf16* q, const bf16* keys, const bf16* values, const u32* segments, const u32* tables, const bf16* out,    \
        const float* lse, const bf16* dout, float* delta, float* dq, PLAN, ATTENTION_SHAPE, float scale) {               \
        begin();                                                                                                         \
        ON_HOPPER(if (blockIdx.x > 0) hopper_queries<D>(q, keys, values, segments, tables, out, lse, dout, delta, dq,    \
                                                        blockIdx.x - 1, SHAPE, scale);                                   \
                  else MAKE_PLAN;)                                                                                       \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128, KEYS_RESIDENT) attention_backward_hopper_keys_##D(                 \
        const bf16* q, const bf16* keys, const bf16* values, const u32* segments, const u32* tables, const float* lse,   \
        const bf16* dout, const float* delta, const u32* counts, const Tile* tiles, const Item* items, float* parts,     \
        float* dkv, ATTENTION_SHAPE, float scale) {                                                                      \
        begin();                                                                                                         \
        ON_HOPPER(hopper_keys<D>(q, keys, values, segments, tables, lse, dout, delta, counts, tiles, items, parts, dkv,  \
                                 SHAPE, scale);)                                                                         \
    }
HOPPER_KERNELS(64, 3, 2)
HOPPER_KERNELS(128, 2, 2)
