// Attention over the paged cache, causal or over whole segments.
//
// A row's result is a function of its own keys alone, to the bit. Units of 64 keys begin at absolute positions. A unit
// gives (max, sum, out) by itself: scores, each one chain over D; their largest; weights 2^(score - largest), which are
// summed unrounded and rounded to bf16 as the left operand of the product with the values, each element one chain over
// the unit's keys. `join` joins units in ascending order to chunks of 512 keys, and chunks in ascending order to the
// row's result; the first is taken as it is. One thread does so for a row's element or several do in turn, in one block
// or in many: the operations and their order are the same. A unit in which a row has no key is not joined. Slots beyond
// a tile's last key are taken as zeros, so that weights of 0 meet no NaN; so are blocks before its first one, where
// rows have windows: the first unit of a row's window is the first one that it takes.
//
// A row whose head has a sink begins with it: a largest score of the sink, a sum of 1 and an output of 0, which its first
// chunk is joined to. Such kernels are of heads of 64 elements, and have names of their own.
//
// The sum is of unrounded weights: the log-sum-exp, which the gradients divide by, is then good to f32, and the
// roundings of the weights, 2^-9 each, are independent errors of the output, below its own rounding for most rows.

// ---- decode: segments of one row ------------------------------------------------------------------------------------

/// Floats between rows of a unit's results in shared memory: 8 banks, so that eight rows' pairs do not meet.
template <int D> struct Pitch {
    static const u32 value = D + 8;
};

/// The segments whose keys of `chunk` are those of segment blockIdx.x, as bits, among its `sharing` neighbours: rows that
/// see all of the chunk, in the same blocks of the cache. The whole warp calls it; all of them find the same.
__device__ __forceinline__ u32 sharers(const u32* segments, const u32* tables, const Shape& shape, u32 chunk, u32 sharing) {
    const u32 lane = threadIdx.x % WARP, mine = blockIdx.x % sharing, index = blockIdx.x - mine + lane;
    const u32 first = chunk * (ATTENTION_CHUNK / KV_BLOCK), last = first + ATTENTION_CHUNK / KV_BLOCK - 1;
    u32 table = 0, entry = 0;
    bool sees = false;
    if (lane < sharing && index < shape.segments) {
        const Segment other = segment_at(segments, index);
        const u32 num_keys = other.first_position + 1;
        sees = other.rows == 1 && segment_ok(other, shape) && num_keys >= (chunk + 1) * ATTENTION_CHUNK &&
               shape.from(num_keys) <= chunk * ATTENTION_CHUNK;
        table = other.table;
        if (sees) entry = tables[table + last];
    }
    const u32 wanted = __shfl_sync(ALL_LANES, entry, mine);
    u32 who = __ballot_sync(ALL_LANES, sees && entry == wanted);
    if (!(who >> mine & 1)) return 0;
    const u32 own = __shfl_sync(ALL_LANES, table, mine);
    for (u32 others = who & ~(1u << mine); others; others &= others - 1) {
        const u32 other = __ffs(others) - 1, its = __shfl_sync(ALL_LANES, table, other);
        if (__any_sync(ALL_LANES, tables[its + first + lane] != tables[own + first + lane])) who &= ~(1u << other);
    }
    return who;
}

/// A block takes the whole `chunk` for all heads of a key-value head of all `who`, up to 64 rows: 16 a warp.
template <int D>
__device__ __forceinline__ void shared_chunk(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,
                                             const u32* tables, float* parts, const Shape& shape, u32 kv_head, u32 chunk,
                                             u32 chunks, u32 base, u32 who, float scale) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    const u32 lane = threadIdx.x % WARP, first = threadIdx.x / WARP * TILE, group = shape.group();
    const u32 num = __popc(who) * group;
    u64 place[2] = {}, part[2] = {};
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        const u32 row = first + lane / 4 + 8 * r;
        if (row >= num) continue;
        const u32 of = base + __fns(who, 0, row / group + 1), head = kv_head * group + row % group;
        place[r] = (u64)segments[(u64)of * SEGMENT_FIELDS] * shape.heads + head;
        part[r] = ((u64)of * shape.heads + head) * chunks + chunk;
    }
    const bool low = first + lane / 4 < num, high = first + lane / 4 + 8 < num;
    const u32* table = tables + segment_at(segments, base + __ffs(who) - 1).table;
    KeyStream<D, 4> stream(keys, values, table, shape, kv_head, chunk * ATTENTION_CHUNK, (chunk + 1) * ATTENTION_CHUNK,
                           dynamic_shared);
    u32 rows[D / STEP][4];
    read_rows<D>(rows, low ? q + place[0] * D : nullptr, high ? q + place[1] * D : nullptr);
    float o[D / 8][4];
    Sum sum[2];
    for (u32 unit = stream.first_unit; unit < stream.num_units; unit++) {
        stream.arrive(unit);
        if (first >= num) continue;
        float s[2][4][4], fresh[D / 8][4] = {};
        dot_half<D>(s[0], rows, stream.keys_of(unit));
        dot_half<D>(s[1], rows, stream.keys_of(unit) + HALF * D);
        const Sum fresh_sum[2] = {unit_weights<0>(s, 0, UNIT, scale), unit_weights<1>(s, 0, UNIT, scale)};
        u32 weights[2][4];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            as_left(weights, s[half]);
            sum_half<D>(fresh, weights, stream.values_of(unit) + half * HALF * D);
        }
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const bool begins = unit == stream.first_unit;
            float keep = 0.0f, add = 1.0f;
            if (begins) sum[r] = fresh_sum[r];
            else join(sum[r], fresh_sum[r], keep, add);
#pragma unroll
            for (u32 i = 0; i < D / 4; i++) {
                float& x = o[i / 2][2 * r + i % 2];
                const float with = fresh[i / 2][2 * r + i % 2];
                x = begins ? with : joined(x, keep, with, add);
            }
        }
    }
    Sum* sums = (Sum*)(parts + (u64)shape.segments * shape.heads * chunks * D);
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        if (!(r ? high : low)) continue;
        float* to = parts + part[r] * D + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < D / 8; n++) *(float2*)(to + n * 8) = make_float2(o[n][2 * r], o[n][2 * r + 1]);
        if (lane % 4 == 0) sums[part[r]] = sum[r];
    }
}

/// A block takes one segment, up to 16 heads of one key-value head, and one chunk (`chunks` > 0, the stride of `parts`)
/// or all of them. Warp w takes units w, w + warps, ..; each streams its halves of keys and values through SLOTS slots.
/// With `sharing` > 0, the first of neighbours that have a chunk's keys in the same blocks takes it for all of them.
/// SUNK: with the heads' `sinks`.
template <int D, int SLOTS, bool SUNK = false>
__device__ __forceinline__ void decode(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,
                                       const u32* tables, bf16* out, float* lse, float* parts, const Shape& shape,
                                       u32 chunks, u32 sharing, float scale, const bf16* sinks = nullptr) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const u32 tiles = (shape.group() + TILE - 1) / TILE;
    const u32 kv_head = blockIdx.y / tiles, first_head = blockIdx.y % tiles * TILE;
    const u32 num = min(shape.group() - first_head, (u32)TILE);
    const Segment segment = segment_at(segments, blockIdx.x);
    if (segment.rows == 0 || !index_ok(BAD_SEGMENT, segment.rows, 2) || !segment_ok(segment, shape)) return;
    const u32 num_keys = segment.first_position + 1;
    const u32 first_key = shape.from(num_keys), first_unit = first_key / UNIT;
    const u32 first_chunk = chunks > 0 ? blockIdx.z : first_key / ATTENTION_CHUNK;
    const u32 end_chunk = chunks > 0 ? first_chunk + 1 : (num_keys + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK;
    if (first_chunk * ATTENTION_CHUNK >= num_keys || (first_chunk + 1) * ATTENTION_CHUNK <= first_key) return;
    const u32 end = min((num_keys + UNIT - 1) / UNIT, end_chunk * CHUNK_UNITS);
    if (sharing > 0) {
        const u32 who = sharers(segments, tables, shape, first_chunk, sharing);
        if (who & (who - 1)) {
            if (first_head > 0 || blockIdx.x % sharing != __ffs(who) - 1) return;
            const u32 base = blockIdx.x / sharing * sharing;
            return shared_chunk<D>(q, keys, values, segments, tables, parts, shape, kv_head, first_chunk, chunks, base,
                                   who, scale);
        }
    }

    bf16* slots = (bf16*)dynamic_shared + warp * SLOTS * HALF * D;
    float* results = (float*)((bf16*)dynamic_shared + warps * SLOTS * HALF * D); // [units, and the chunks before][num]
    Sum* sums = (Sum*)(results + (CHUNK_UNITS + 1) * num * Pitch<D>::value);     // [units + 2][TILE]

    const u64 first_place = shape.place(segment, kv_head, first_head);
    const u32 low = lane / 4, high = lane / 4 + 8;
    u32 rows[D / STEP][4];
    read_rows<D>(rows, low < num ? q + (first_place + low) * D : nullptr,
                 high < num ? q + (first_place + high) * D : nullptr);

    // The table entries of a unit, in the first four lanes.
    auto entries = [&](u32 unit) -> u32 {
        u32 block = unit * (UNIT / KV_BLOCK) + lane;
        bool mine = lane < UNIT / KV_BLOCK && unit < end && block * KV_BLOCK < num_keys;
        return mine ? tables[segment.table + block] : 0;
    };
    // Parts 0 and 1 of a unit are halves of its keys, 2 and 3 of its values.
    auto fetch = [&](u32 unit, u32 part, u32 slot, u32 table) {
        if (unit < end) {
#pragma unroll
            for (u32 i = 0; i < HALF / KV_BLOCK; i++) {
                u32 block = part % 2 * (HALF / KV_BLOCK) + i, key = unit * UNIT + block * KV_BLOCK;
                u32 entry = __shfl_sync(ALL_LANES, table, block);
                u32 valid = key < num_keys && key + KV_BLOCK > first_key ? num_keys - key : 0;
                if (!index_ok(BAD_KV_BLOCK, entry, shape.blocks)) entry = valid = 0;
                const bf16* from = (part < 2 ? keys : values) + shape.block(entry, kv_head) * KV_BLOCK * D;
                fetch_rows<D, KV_BLOCK>(slots + slot * HALF * D, i * KV_BLOCK, from, valid);
            }
        }
        copy_async_commit();
    };

    u32 unit = max(first_chunk * CHUNK_UNITS, first_unit) + warp;
    u32 now = entries(unit), next = entries(unit + warps);
    // The part that replaces part `done` once that has been used.
    auto follow = [&](u32 done) {
        __syncwarp();
        u32 part = done + SLOTS;
        fetch(part < 4 ? unit : unit + warps, part % 4, done % SLOTS, part < 4 ? now : next);
    };
    auto arrived = [&](u32 part) -> const bf16* {
        copy_async_wait<SLOTS - 1>();
        __syncwarp();
        return slots + part % SLOTS * HALF * D;
    };
#pragma unroll
    for (u32 part = 0; part < SLOTS; part++) fetch(unit, part, part, now);

    for (u32 chunk = first_chunk; chunk < end_chunk; chunk++) {
        const u32 chunk_unit = chunk * CHUNK_UNITS, upto = min(end, chunk_unit + CHUNK_UNITS);
        for (; unit < upto; unit += warps) {
            float s[2][4][4], o[D / 8][4] = {};
            u32 weights[2][4];
            dot_half<D>(s[0], rows, arrived(0));
            follow(0);
            dot_half<D>(s[1], rows, arrived(1));
            follow(1);
            const u32 from = seen_of(first_key, unit), seen = seen_of(num_keys, unit);
            Sum sum[2];
            sum[0] = unit_weights<0>(s, from, seen, scale);
            if (num > 8) sum[1] = unit_weights<1>(s, from, seen, scale);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                as_left(weights, s[half]);
                sum_half<D>(o, weights, arrived(2 + half));
                follow(2 + half);
            }
            float* to = results + (unit - chunk_unit) * num * Pitch<D>::value + lane % 4 * 2;
#pragma unroll
            for (u32 n = 0; n < D / 8; n++) {
                if (low < num) *(float2*)(to + low * Pitch<D>::value + n * 8) = make_float2(o[n][0], o[n][1]);
                if (high < num) *(float2*)(to + high * Pitch<D>::value + n * 8) = make_float2(o[n][2], o[n][3]);
            }
            if (lane % 4 == 0) {
                if (low < num) sums[(unit - chunk_unit) * TILE + low] = sum[0];
                if (high < num) sums[(unit - chunk_unit) * TILE + high] = sum[1];
            }
            now = next;
            next = entries(unit + 2 * warps);
        }
        __syncthreads();
        for (u32 item = threadIdx.x; item < num * (D / 4); item += blockDim.x) {
            const u32 row = item / (D / 4), at = item % (D / 4) * 4;
            auto result = [&](u32 u) { return (float4*)(results + (u * num + row) * Pitch<D>::value + at); };
            const u32 begin = max(chunk_unit, first_unit) - chunk_unit;
            float4 o = *result(begin);
            Sum sum = sums[begin * TILE + row];
            float keep, add;
            for (u32 u = begin + 1; u < upto - chunk_unit; u++) {
                join(sum, sums[u * TILE + row], keep, add);
                const float4 with = *result(u);
                o = make_float4(joined(o.x, keep, with.x, add), joined(o.y, keep, with.y, add),
                                joined(o.z, keep, with.z, add), joined(o.w, keep, with.w, add));
            }
            // The earlier chunks lie after the units; their sums in turns, as a row has several threads.
            if (chunk > first_chunk) {
                Sum total = sums[(CHUNK_UNITS + chunk % 2) * TILE + row];
                join(total, sum, keep, add);
                const float4 t = *result(CHUNK_UNITS);
                o = make_float4(joined(t.x, keep, o.x, add), joined(t.y, keep, o.y, add),
                                joined(t.z, keep, o.z, add), joined(t.w, keep, o.w, add));
                sum = total;
            } else if (SUNK && chunks == 0) {
                const float add = join_sink(sum, sinks[kv_head * shape.group() + first_head + row]);
                o = make_float4(o.x * add, o.y * add, o.z * add, o.w * add);
            }
            if (chunk + 1 < end_chunk) {
                *result(CHUNK_UNITS) = o;
                if (at == 0) sums[(CHUNK_UNITS + (chunk + 1) % 2) * TILE + row] = sum;
                continue;
            }
            const u32 head = kv_head * shape.group() + first_head + row;
            if (chunks > 0) {
                u64 part = ((u64)blockIdx.x * shape.heads + head) * chunks + chunk;
                *(float4*)(parts + part * D + at) = o;
                Sum* part_sums = (Sum*)(parts + (u64)shape.segments * shape.heads * chunks * D);
                if (at == 0) part_sums[part] = sum;
                continue;
            }
            const float inverse = 1.0f / sum.sum;
            const u64 place = first_place + row;
            *(uint2*)(out + place * D + at) = make_uint2(pack_bf16(o.x * inverse, o.y * inverse),
                                                         pack_bf16(o.z * inverse, o.w * inverse));
            if (lse && at == 0) lse[place] = log_sum_exp(sum);
        }
        if (chunk + 1 < end_chunk) __syncthreads();
    }
}

// ---- tiles: segments of any number of rows --------------------------------------------------------------------------

/// A block takes a tile of 16 rows a warp, of one segment and key-value head, and goes through their keys once. With
/// more than one chunk, each thread's part of the chunks before comes after the keys in shared memory. HOPPER: four
/// warps multiply together; an element is the same chain, and has the same bits. SUNK: with the heads' `sinks`.
template <int D, int WARPS, bool HOPPER, bool SUNK = false>
__device__ __forceinline__ void tiles(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,
                                      const u32* tables, bf16* out, float* lse, const Shape& shape, float scale,
                                      const bf16* sinks = nullptr) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    u8* shared = dynamic_shared;
    if constexpr (HOPPER) shared += (PANEL_ALIGN - shared_address(shared) % PANEL_ALIGN) % PANEL_ALIGN;
    const u32 index = blockIdx.x / shape.kv_heads, kv_head = blockIdx.x % shape.kv_heads;
    u32 of, place;
    if (!find_tile(segments, shape.segments, shape.group(), WARPS * TILE, index, of, place)) return;
    const Segment segment = segment_at(segments, of);
    if (!segment_ok(segment, shape)) return;
    const TileRows<WARPS> tile(segment, shape, kv_head, place);
    KeyStream<D, WARPS, HOPPER> stream(keys, values, tables + segment.table, shape, kv_head, tile.first_key,
                                       tile.num_keys, shared);
    u32 rows[D / STEP][4];
    tile.template read<D>(rows, q);

    float* before = (float*)(stream.buffers + 2 * stream.BUFFER) + threadIdx.x; // [D / 2 + 4][threads]
    float o[D / 8][4];
    Sum sum[2];
    for (u32 unit = stream.first_unit; unit < stream.num_units; unit++) {
        stream.arrive(unit);
        // Warps without keys take part where all multiply together.
        if (!HOPPER && unit * UNIT >= tile.warp_keys) continue;
        float s[2][4][4], fresh[D / 8][4] = {};
        if constexpr (HOPPER) {
            dot_unit<D>(s, rows, stream.keys_of(unit));
        } else {
            dot_half<D>(s[0], rows, stream.keys_of(unit));
            dot_half<D>(s[1], rows, stream.keys_of(unit) + HALF * D);
        }
        const Sum fresh_sum[2] = {
            unit_weights<0>(s, seen_of(tile.row_from[0], unit), seen_of(tile.row_keys[0], unit), scale),
            unit_weights<1>(s, seen_of(tile.row_from[1], unit), seen_of(tile.row_keys[1], unit), scale)};
        u32 weights[2][2][4];
        as_left(weights[0], s[0]);
        as_left(weights[1], s[1]);
        if constexpr (HOPPER) {
            values_of_unit<D>(fresh, weights, stream.values_of(unit));
            if (unit * UNIT >= tile.warp_keys) continue;
        } else {
            sum_half<D>(fresh, weights[0], stream.values_of(unit));
            sum_half<D>(fresh, weights[1], stream.values_of(unit) + HALF * D);
        }
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            // Replaces what units before the row's window left.
            if (unit % CHUNK_UNITS == 0 || unit == tile.row_from[r] / UNIT) {
                sum[r] = fresh_sum[r];
#pragma unroll
                for (u32 i = 0; i < D / 4; i++) o[i / 2][2 * r + i % 2] = fresh[i / 2][2 * r + i % 2];
            } else if (tile.row_keys[r] > unit * UNIT) {
                float keep, add;
                join(sum[r], fresh_sum[r], keep, add);
#pragma unroll
                for (u32 i = 0; i < D / 4; i++) {
                    float& x = o[i / 2][2 * r + i % 2];
                    x = joined(x, keep, fresh[i / 2][2 * r + i % 2], add);
                }
            }
        }
        const bool more = (unit + 1) * UNIT < tile.warp_keys;
        if (more && unit % CHUNK_UNITS != CHUNK_UNITS - 1) continue;
        // The chunk's end.
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            float* b = before + r * (D / 4 + 2) * WARPS * WARP;
            if (unit / CHUNK_UNITS > tile.row_from[r] / ATTENTION_CHUNK) {
                Sum total = {b[0], b[WARPS * WARP]};
                float keep = 1.0f, add = 0.0f;
                const bool sees = tile.row_keys[r] > unit / CHUNK_UNITS * ATTENTION_CHUNK;
                if (sees) join(total, sum[r], keep, add);
                sum[r] = total;
#pragma unroll
                for (u32 i = 0; i < D / 4; i++) {
                    float& x = o[i / 2][2 * r + i % 2];
                    const float t = b[(2 + i) * WARPS * WARP];
                    x = sees ? joined(t, keep, x, add) : t;
                }
            } else if (SUNK) {
                // Units before the row's window too, which are replaced.
                const float add = join_sink(sum[r], sinks[tile.places[r] % shape.heads]);
#pragma unroll
                for (u32 i = 0; i < D / 4; i++) o[i / 2][2 * r + i % 2] *= add;
            }
            if (more) {
                b[0] = sum[r].max;
                b[WARPS * WARP] = sum[r].sum;
#pragma unroll
                for (u32 i = 0; i < D / 4; i++) b[(2 + i) * WARPS * WARP] = o[i / 2][2 * r + i % 2];
            }
        }
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        if (tile.row_keys[r] == 0) continue;
        const float inverse = 1.0f / sum[r].sum;
        u32* to = (u32*)(out + tile.places[r] * D) + threadIdx.x % 4;
#pragma unroll
        for (u32 n = 0; n < D / 8; n++) to[n * 4] = pack_bf16(o[n][2 * r] * inverse, o[n][2 * r + 1] * inverse);
        if (lse && threadIdx.x % 4 == 0) lse[tile.places[r]] = log_sum_exp(sum[r]);
    }
}

#define ATTENTION_KERNELS(D, SLOTS, RESIDENT)                                                                            \
    extern "C" __global__ void __launch_bounds__(128)                                                                    \
        attention_decode_##D(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,                   \
                             const u32* tables, bf16* out, float* lse, float* parts, ATTENTION_SHAPE, u32 chunks,        \
                             u32 sharing, float scale) {                                                                 \
        begin();                                                                                                         \
        decode<D, SLOTS>(q, keys, values, segments, tables, out, lse, parts, SHAPE, chunks, sharing, scale);             \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128)                                                                    \
        attention_join_##D(const float* parts, const u32* segments, bf16* out, float* lse, ATTENTION_SHAPE,              \
                           u32 chunks) {                                                                                 \
        begin();                                                                                                         \
        join_parts<D>(parts, segments, out, lse, SHAPE, chunks);                                                         \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128, RESIDENT)                                                          \
        attention_tiles_##D(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,                    \
                            const u32* tables, bf16* out, float* lse, ATTENTION_SHAPE, float scale) {                    \
        begin();                                                                                                         \
        tiles<D, 4, false>(q, keys, values, segments, tables, out, lse, SHAPE, scale);                                   \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128, RESIDENT)                                                          \
        attention_hopper_tiles_##D(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,             \
                                   const u32* tables, bf16* out, float* lse, ATTENTION_SHAPE, float scale) {             \
        begin();                                                                                                         \
        ON_HOPPER(tiles<D, 4, true>(q, keys, values, segments, tables, out, lse, SHAPE, scale);)                         \
    }
ATTENTION_KERNELS(64, 4, 3)
ATTENTION_KERNELS(128, 2, 2)

extern "C" __global__ void __launch_bounds__(128)
    attention_sunk_decode(const bf16* q, const bf16* keys, const bf16* values, const u32* segments, const u32* tables,
                          bf16* out, float* lse, float* parts, ATTENTION_SHAPE, u32 chunks, u32 sharing, float scale,
                          const bf16* sinks) {
    begin();
    decode<64, 4, true>(q, keys, values, segments, tables, out, lse, parts, SHAPE, chunks, sharing, scale, sinks);
}
extern "C" __global__ void __launch_bounds__(128)
    attention_sunk_join(const float* parts, const u32* segments, bf16* out, float* lse, ATTENTION_SHAPE, u32 chunks,
                        const bf16* sinks) {
    begin();
    join_parts<64, true>(parts, segments, out, lse, SHAPE, chunks, sinks);
}
extern "C" __global__ void __launch_bounds__(128, 3)
    attention_sunk_tiles(const bf16* q, const bf16* keys, const bf16* values, const u32* segments, const u32* tables,
                         bf16* out, float* lse, ATTENTION_SHAPE, float scale, const bf16* sinks) {
    begin();
    tiles<64, 4, false, true>(q, keys, values, segments, tables, out, lse, SHAPE, scale, sinks);
}
extern "C" __global__ void __launch_bounds__(128, 3)
    attention_sunk_hopper_tiles(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,
                                const u32* tables, bf16* out, float* lse, ATTENTION_SHAPE, float scale,
                                const bf16* sinks) {
    begin();
    ON_HOPPER(tiles<64, 4, true, true>(q, keys, values, segments, tables, out, lse, SHAPE, scale, sinks);)
}

// ---- the plain kernel -----------------------------------------------------------------------------------------------

/// A warp takes one row and its keys, 32 at a time; a lane has the scores of one key and EIGHTS times eight elements of
/// the output.
/// A row has no tile mates here, so any fixed order will do. It begins with its head's sink, if there are `sinks`.
template <class T, int EIGHTS>
__device__ __forceinline__ void plain(const T* q, const T* keys, const T* values, const u32* segments,
                                      const u32* tables, T* out, float* lse, const Shape& shape, u32 d, float scale,
                                      float cap, const T* sinks) {
    const u32 lane = threadIdx.x % WARP;
    const u64 place = (u64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (place >= (u64)shape.rows * shape.heads) return;
    const u32 row = place / shape.heads, kv_head = place % shape.heads / shape.group();
    u32 of;
    if (!find_row(segments, shape.segments, row, of)) return;
    const Segment segment = segment_at(segments, of);
    if (!segment_ok(segment, shape)) return;
    const u32 num_keys = shape.keys(segment, row - segment.first_row);
    const u32 first_key = shape.from(num_keys);
    float o[8 * EIGHTS] = {};
    Sum sum = {MINUS_INFINITY, 0.0f};
    if (sinks) sum = {to_f32(sinks[place % shape.heads]) * LOG2_E, 1.0f};
    for (u32 base = first_key / WARP * WARP; base < num_keys; base += WARP) {
        const u32 key = base + lane;
        bool sees = key < num_keys && key >= first_key;
        u32 entry = sees ? tables[segment.table + key / KV_BLOCK] : 0;
        if (!index_ok(BAD_KV_BLOCK, entry, shape.blocks)) entry = sees = 0;
        const u64 at = (shape.block(entry, kv_head) * KV_BLOCK + key % KV_BLOCK) * d;
        float score = sees ? plain_dot(q + place * d, keys + at, d) * scale : MINUS_INFINITY;
        if (sees && cap > 0.0f) score = capped(score, cap);
        const float max = fmaxf(sum.max, warp_max(score));
        const float keep = exp2_fast(sum.max - max), weight = sees ? exp2_fast(score - max) : 0.0f;
        sum = {max, fma(sum.sum, keep, warp_sum(weight))};
#pragma unroll
        for (u32 i = 0; i < 8 * EIGHTS; i++) o[i] = o[i] * keep;
        for (u32 j = base < first_key ? first_key - base : 0; j < min(num_keys - base, (u32)WARP); j++) {
            float value[8 * EIGHTS];
            read_eights<EIGHTS>(value, values + __shfl_sync(ALL_LANES, at, j), d);
            const float w = __shfl_sync(ALL_LANES, weight, j);
#pragma unroll
            for (u32 i = 0; i < 8 * EIGHTS; i++) o[i] = fma(w, value[i], o[i]);
        }
    }
    const float inverse = 1.0f / sum.sum;
#pragma unroll
    for (u32 i = 0; i < 8 * EIGHTS; i++) {
        if (plain_at(i) < d) out[place * d + plain_at(i)] = from_f32<T>(o[i] * inverse);
    }
    if (lse && lane == 0) lse[place] = log_sum_exp(sum);
}

#define PLAIN_KERNEL(NAME, T, EIGHTS)                                                                                    \
    extern "C" __global__ void __launch_bounds__(128)                                                                    \
        NAME##_##T(const T* q, const T* keys, const T* values, const u32* segments, const u32* tables, T* out,           \
                   float* lse, ATTENTION_SHAPE, u32 d, float scale, float cap, const T* sinks) {                         \
        begin();                                                                                                         \
        plain<T, EIGHTS>(q, keys, values, segments, tables, out, lse, SHAPE, d, scale, cap, sinks);                      \
    }
PLAIN_KERNEL(attention_plain, bf16, NARROW)
PLAIN_KERNEL(attention_plain, float, NARROW)
PLAIN_KERNEL(attention_plain_wide, bf16, PLAIN_WIDE)
PLAIN_KERNEL(attention_plain_wide, float, PLAIN_WIDE)
