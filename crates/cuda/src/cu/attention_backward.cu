// Gradients of attention: weights are recomputed from the log-sum-exp.
//
//   P = 2^(S scale log2 e - lse log2 e), dP = dO V^T, dS = P (dP - delta), delta = rowsum(dO O)
//   dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO
//
// P and dS are rounded to bf16 as operands of the next product; all sums are f32, the scale is applied to sums.
//
// Nothing is added by atomics. dQ is one chain over a row's keys, in one warp. A key's gradients belong to the rows
// that own it: a tile of 64 own rows of a segment goes through the queries of the segment's later rows, then through
// those of its children in order, in steps of 64 rows of one segment, all heads of the group token by token. Where rows
// see whole segments, it goes through all rows of its segment, as through those of a child. A tile's
// steps are cut into pieces of about one length, so that the first tiles of long segments are not waited for;
// `attention_backward_join` adds the pieces' results in order. The length follows from the batch's segments alone, and
// so do the bits. The plan of pieces is in attention_plan.cuh. Hopper has attention_backward_hopper.cu. A sink is in the
// log-sum-exps, and so in all of these; its own gradient is an operation of its own.

extern "C" __global__ void __launch_bounds__(1024)
    attention_backward_plan(const u32* segments, PLAN, ATTENTION_SHAPE) {
    begin();
    MAKE_PLAN;
}

// ---- dQ -------------------------------------------------------------------------------------------------------------

/// A block takes a tile of 16 rows a warp, as in the forward pass; `delta` is written for the keys' gradients. `block`
/// counts tiles and, within a tile, key-value heads.
template <int D, int WARPS>
__device__ __forceinline__ void backward_queries(const bf16* q, const bf16* keys, const bf16* values,
                                                 const u32* segments, const u32* tables, const bf16* out,
                                                 const float* lse, const bf16* dout, float* delta, float* dq,
                                                 u32 block, const Shape& shape, float scale) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    const u32 lane = threadIdx.x % WARP, index = block / shape.kv_heads, kv_head = block % shape.kv_heads;
    u32 of, place;
    if (!find_tile(segments, shape.segments, shape.group(), WARPS * TILE, index, of, place)) return;
    const Segment segment = segment_at(segments, of);
    if (!segment_ok(segment, shape)) return;
    const TileRows<WARPS> tile(segment, shape, kv_head, place);

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

    KeyStream<D, WARPS> stream(keys, values, tables + segment.table, shape, kv_head, tile.first_key,
                              tile.num_keys, dynamic_shared);
    float sum[D / 8][4] = {};
    for (u32 unit = stream.first_unit; unit < stream.num_units; unit++) {
        stream.arrive(unit);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 first_key = unit * UNIT + half * HALF;
            if (first_key >= tile.warp_keys) continue;
            float s[4][4], d[4][4];
            dot_half<D>(s, rows, stream.keys_of(unit) + half * HALF * D);
            dot_half<D>(d, douts, stream.values_of(unit) + half * HALF * D);
#pragma unroll
            for (u32 i = 0; i < 16; i++) {
                const u32 n = i / 4, r = i % 4 / 2;
                const u32 key = first_key + n * 8 + lane % 4 * 2 + i % 2;
                const float p = exp2_fast(fma(s[n][i % 4], log_scale, -log_sum[r]));
                const bool sees = key < tile.row_keys[r] && key >= tile.row_from[r];
                d[n][i % 4] = sees ? p * (d[n][i % 4] - deltas[r]) : 0.0f;
            }
            u32 left[2][4];
            as_left(left, d);
            sum_half<D>(sum, left, stream.keys_of(unit) + half * HALF * D);
        }
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        if (tile.row_keys[r] == 0) continue;
        float* to = dq + tile.places[r] * D + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < D / 8; n++)
            *(float2*)(to + n * 8) = make_float2(sum[n][2 * r] * scale, sum[n][2 * r + 1] * scale);
    }
}

// ---- dK and dV ------------------------------------------------------------------------------------------------------

/// A warp's 16 keys or values as a left operand, kept in registers or read from shared memory each time.
template <int D, bool KEPT> struct Left;
template <int D> struct Left<D, true> {
    u32 x[D / STEP][4];
    __device__ __forceinline__ Left(const bf16* rows) {
#pragma unroll
        for (u32 t = 0; t < D / STEP; t++) read_left<D>(x[t], rows, t);
    }
    __device__ __forceinline__ void dot(float (&out)[4][4], const bf16* rows) const { dot_half<D>(out, x, rows); }
};
template <int D> struct Left<D, false> {
    const bf16* left;
    __device__ __forceinline__ Left(const bf16* rows) : left(rows) {}
    __device__ __forceinline__ void dot(float (&out)[4][4], const bf16* rows) const {
        dot_half_shared<D>(out, left, rows);
    }
};

/// A block takes an item: each warp has 16 of its keys.
template <int D, bool KEPT>
__device__ __forceinline__ void backward_keys(const bf16* q, const bf16* keys, const bf16* values, const u32* segments,
                                              const u32* tables, const float* lse, const bf16* dout,
                                              const float* delta, const u32* counts, const Tile* tiles,
                                              const Item* items, float* parts, float* dkv, const Shape& shape,
                                              float scale) {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, kv_head = blockIdx.x % shape.kv_heads;
    if (blockIdx.x / shape.kv_heads >= counts[0]) return;
    const Item item = items[blockIdx.x / shape.kv_heads];
    const Tile tile = tiles[item.tile];
    const Segment segment = segment_at(segments, tile.segment);
    const u32 first_key = tile.key;
    const Group group(shape.group());

    bf16* own = (bf16*)dynamic_shared;                     // [keys, values][UNIT][D]
    bf16* buffers = own + 2 * UNIT * D;                    // [2][queries, douts][UNIT][D]
    float* sums = (float*)(buffers + 4 * UNIT * D);        // [2][UNIT] log-sum-exps
    float* deltas = sums + 2 * UNIT;                       // [2][UNIT]
    u32* bounds = (u32*)(deltas + 2 * UNIT);               // [2][UNIT] own keys that a row sees
    u32* froms = bounds + 2 * UNIT; // [2][UNIT] own keys before the first that a row sees
#pragma unroll
    for (u32 i = 0; i < UNIT * D / 8 / 128; i++) {
        const u32 at = i * 128 + threadIdx.x, row = at / (D / 8), piece = at % (D / 8);
        const u32 position = segment.first_position + first_key + row;
        bool valid = first_key + row < segment.rows;
        u32 entry = valid ? tables[segment.table + position / KV_BLOCK] : 0;
        if (!index_ok(BAD_KV_BLOCK, entry, shape.blocks)) entry = valid = 0;
        const u64 from = (shape.block(entry, kv_head) * KV_BLOCK + position % KV_BLOCK) * D + piece * 8;
        copy_async_16(own + swizzled<D>(row, piece), keys + from, valid);
        copy_async_16(own + UNIT * D + swizzled<D>(row, piece), values + from, valid);
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
            copy_async_16(to + swizzled<D>(row, piece), q + from, valid);
            copy_async_16(to + UNIT * D + swizzled<D>(row, piece), dout + from, valid);
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
    // The keys have arrived, the first queries may still be under way.
    copy_async_wait<1>();
    __syncthreads();
    const Left<D, KEPT> my_keys(own + warp * TILE * D), my_values(own + UNIT * D + warp * TILE * D);
    const u32 my_key = first_key + warp * TILE + lane / 4;
    const float log_scale = scale * LOG2_E;
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    bool more = true;
    for (u32 buffer = 0; more; buffer ^= 1) {
        copy_async_wait<0>();
        if (threadIdx.x < UNIT) {
            sums[buffer * UNIT + threadIdx.x] = coming_sum;
            deltas[buffer * UNIT + threadIdx.x] = coming_delta;
            bounds[buffer * UNIT + threadIdx.x] = coming_bound;
            froms[buffer * UNIT + threadIdx.x] = coming_from;
        }
        __syncthreads();
        more = queries.next();
        if (more) fetch(buffer ^ 1);
        const bf16* unit = buffers + buffer * 2 * UNIT * D;
#pragma unroll 1
        for (u32 half = 0; half < 2; half++) {
            const u32 first = buffer * UNIT + half * HALF, column = first + lane % 4 * 2;
            // Later rows see no fewer keys.
            if (first_key + warp * TILE >= bounds[first + HALF - 1]) continue;
            // Earlier rows see keys that come earlier.
            if (first_key + warp * TILE + TILE <= froms[first]) continue;
            float p[4][4], d[4][4];
            u32 left[2][4];
            my_keys.dot(p, unit + half * HALF * D);
            my_values.dot(d, unit + UNIT * D + half * HALF * D);
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                const float2 sum = *(const float2*)(sums + column + n * 8);
#pragma unroll
                for (u32 i = 0; i < 4; i++) p[n][i] = exp2_fast(fma(p[n][i], log_scale, i % 2 ? -sum.y : -sum.x));
            }
            if (first_key + warp * TILE + TILE > bounds[first]) {
#pragma unroll
                for (u32 n = 0; n < 4; n++) {
                    const uint2 bound = *(const uint2*)(bounds + column + n * 8);
#pragma unroll
                    for (u32 i = 0; i < 4; i++)
                        if (my_key + i / 2 * 8 >= (i % 2 ? bound.y : bound.x)) p[n][i] = 0.0f;
                }
            }
            if (first_key + warp * TILE < froms[first + HALF - 1]) {
#pragma unroll
                for (u32 n = 0; n < 4; n++) {
                    const uint2 from = *(const uint2*)(froms + column + n * 8);
#pragma unroll
                    for (u32 i = 0; i < 4; i++)
                        if (my_key + i / 2 * 8 < (i % 2 ? from.y : from.x)) p[n][i] = 0.0f;
                }
            }
            as_left(left, p);
            sum_half<D>(dv, left, unit + UNIT * D + half * HALF * D);
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                const float2 delta_of = *(const float2*)(deltas + column + n * 8);
#pragma unroll
                for (u32 i = 0; i < 4; i++) d[n][i] = p[n][i] * (d[n][i] - (i % 2 ? delta_of.y : delta_of.x));
            }
            as_left(left, d);
            sum_half<D>(dk, left, unit + half * HALF * D);
        }
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
            *(float2*)(row + n * 8) = make_float2(dk[n][2 * r] * scale, dk[n][2 * r + 1] * scale);
            *(float2*)(row + shape.kv_heads * D + n * 8) = make_float2(dv[n][2 * r], dv[n][2 * r + 1]);
        }
    }
}

/// Adds the pieces' results in order; rows of no segment become zeros. A warp has a row.
extern "C" __global__ void __launch_bounds__(128)
    attention_backward_join(const u32* segments, const u32* counts, const u32* of_row, const u32* firsts,
                            const Tile* tiles, const float* parts, float* dq, float* dkv, u32 rows, u32 q_width,
                            u32 kv_width) {
    begin();
    const u32 row = blockIdx.x * 4 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    float* to = dkv + (u64)row * kv_width;
    if (of_row[row] == 0) {
        for (u32 i = lane; i < kv_width; i += WARP) to[i] = 0.0f;
        for (u32 i = lane; i < q_width; i += WARP) dq[(u64)row * q_width + i] = 0.0f;
        return;
    }
    const u32 s = of_row[row] - 1, key = row - segments[(u64)s * SEGMENT_FIELDS];
    const Tile tile = tiles[firsts[s] + key / UNIT];
    const u32 pieces = pieces_of(tile, counts[1]);
    for (u32 i = lane * 4; i < kv_width && pieces > 1; i += WARP * 4) {
        float4 sum = *(const float4*)(to + i);
        const float* part = parts + (u64)(tile.first_part + key % UNIT) * kv_width + i;
#pragma unroll 4
        for (u32 piece = 1; piece < pieces; piece++) {
            const float4 x = *(const float4*)part;
            sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
            part += (u64)UNIT * kv_width;
        }
        *(float4*)(to + i) = sum;
    }
}

// The first block of the queries' kernel makes the plan for the keys' kernel, which is next.
#define BACKWARD_KERNELS(D, KEPT, RESIDENT)                                                                              \
    extern "C" __global__ void __launch_bounds__(128, RESIDENT) attention_backward_queries_##D(                          \
        const bf16* q, const bf16* keys, const bf16* values, const u32* segments, const u32* tables, const bf16* out,    \
        const float* lse, const bf16* dout, float* delta, float* dq, PLAN, ATTENTION_SHAPE, float scale) {               \
        begin();                                                                                                         \
        if (blockIdx.x > 0)                                                                                              \
            backward_queries<D, 4>(q, keys, values, segments, tables, out, lse, dout, delta, dq, blockIdx.x - 1, SHAPE,  \
                                   scale);                                                                               \
        else                                                                                                             \
            MAKE_PLAN;                                                                                                   \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128, RESIDENT) attention_backward_keys_##D(                             \
        const bf16* q, const bf16* keys, const bf16* values, const u32* segments, const u32* tables, const float* lse,   \
        const bf16* dout, const float* delta, const u32* counts, const Tile* tiles, const Item* items, float* parts,     \
        float* dkv, ATTENTION_SHAPE, float scale) {                                                                      \
        begin();                                                                                                         \
        backward_keys<D, KEPT>(q, keys, values, segments, tables, lse, dout, delta, counts, tiles, items, parts, dkv,    \
                               SHAPE, scale);                                                                            \
    }
BACKWARD_KERNELS(64, true, 3)
BACKWARD_KERNELS(128, false, 2)

// ---- the plain kernels ----------------------------------------------------------------------------------------------

/// A warp takes a row: delta and dQ. `of_row` is the plan's.
template <class T, int EIGHTS>
__device__ __forceinline__ void plain_queries(const T* q, const T* keys, const T* values, const u32* segments,
                                              const u32* tables, const T* out, const float* lse, const T* dout,
                                              const u32* of_row, float* delta, float* dq, const Shape& shape, u32 d,
                                              float scale, float cap) {
    const u32 lane = threadIdx.x % WARP;
    const u64 place = (u64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (place >= (u64)shape.rows * shape.heads) return;
    const u32 row = place / shape.heads, kv_head = place % shape.heads / shape.group();
    float x[8 * EIGHTS], y[8 * EIGHTS], sum[8 * EIGHTS] = {};
    read_part<EIGHTS>(x, out + place * d, d);
    read_part<EIGHTS>(y, dout + place * d, d);
    float mine = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8 * EIGHTS; i++) mine = fma(x[i], y[i], mine);
    const float own_delta = warp_sum(mine);
    if (lane == 0) delta[place] = own_delta;
    const Segment segment = of_row[row] ? segment_at(segments, of_row[row] - 1) : Segment{row, 0, 0, 0, 0};
    const u32 num_keys = of_row[row] ? shape.keys(segment, row - segment.first_row) : 0;
    const u32 first_key = shape.from(num_keys);
    for (u32 base = first_key / WARP * WARP; base < num_keys; base += WARP) {
        const u32 key = base + lane;
        bool sees = key < num_keys && key >= first_key;
        u32 entry = sees ? tables[segment.table + key / KV_BLOCK] : 0;
        if (!index_ok(BAD_KV_BLOCK, entry, shape.blocks)) entry = sees = 0;
        const u64 at = (shape.block(entry, kv_head) * KV_BLOCK + key % KV_BLOCK) * d;
        float ds = 0.0f;
        if (sees) {
            float score = plain_dot(q + place * d, keys + at, d) * scale;
            if (cap > 0.0f) score = capped(score, cap);
            const float weight = exp2_fast((score - lse[place]) * LOG2_E);
            ds = weight * (plain_dot(dout + place * d, values + at, d) - own_delta) * scale;
            if (cap > 0.0f) ds = ds * capped_slope(score, cap);
        }
        for (u32 j = base < first_key ? first_key - base : 0; j < min(num_keys - base, (u32)WARP); j++) {
            read_eights<EIGHTS>(x, keys + __shfl_sync(ALL_LANES, at, j), d);
            const float w = __shfl_sync(ALL_LANES, ds, j);
#pragma unroll
            for (u32 i = 0; i < 8 * EIGHTS; i++) sum[i] = fma(w, x[i], sum[i]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < 8 * EIGHTS; i++)
        if (plain_at(i) < d) dq[place * d + plain_at(i)] = sum[i];
}

/// A warp takes a key of a row's own: the queries of its segment, then of the children, in order.
template <class T, int EIGHTS>
__device__ __forceinline__ void plain_keys(const T* q, const T* keys, const T* values, const u32* segments,
                                           const u32* tables, const float* lse, const T* dout, const u32* of_row,
                                           const float* delta, float* dkv, const Shape& shape, u32 d, float scale, float cap) {
    const u32 lane = threadIdx.x % WARP, group = shape.group();
    const u64 item = (u64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (item >= (u64)shape.rows * shape.kv_heads) return;
    const u32 row = item / shape.kv_heads, kv_head = item % shape.kv_heads;
    float dk[8 * EIGHTS] = {}, dv[8 * EIGHTS] = {};
    const Segment own = of_row[row] ? segment_at(segments, of_row[row] - 1) : Segment{row, 0, 0, 0, 0};
    const u32 position = own.first_position + row - own.first_row;
    const u32 entry = of_row[row] ? tables[own.table + position / KV_BLOCK] : 0;
    const bool valid = of_row[row] && index_ok(BAD_KV_BLOCK, entry, shape.blocks);
    const u64 at = (shape.block(entry, kv_head) * KV_BLOCK + position % KV_BLOCK) * d;
    // Adds rows from `first` to `end` that see the key; a lane has the weight of one. `at_first`: the first's position.
    auto add = [&](u64 first, u64 end, u32 at_first) {
        const u64 after = (u64)position + shape.window; // positions that see the key are before it
        end = min(end, first + (after > at_first ? after - at_first : 0));
        for (u64 base = first * group; base < end * group; base += WARP) {
            const u64 i = base + lane, place = i / group * shape.heads + kv_head * group + i % group;
            float weight = 0.0f, ds = 0.0f;
            if (i < end * group) {
                float score = plain_dot(q + place * d, keys + at, d) * scale;
                if (cap > 0.0f) score = capped(score, cap);
                weight = exp2_fast((score - lse[place]) * LOG2_E);
                ds = weight * (plain_dot(dout + place * d, values + at, d) - delta[place]) * scale;
                if (cap > 0.0f) ds = ds * capped_slope(score, cap);
            }
            for (u32 j = 0; j < WARP && base + j < end * group; j++) {
                const u64 from = __shfl_sync(ALL_LANES, place, j) * d;
                const float w = __shfl_sync(ALL_LANES, weight, j), s = __shfl_sync(ALL_LANES, ds, j);
                float x[8 * EIGHTS];
                read_eights<EIGHTS>(x, q + from, d);
#pragma unroll
                for (u32 e = 0; e < 8 * EIGHTS; e++) dk[e] = fma(s, x[e], dk[e]);
                read_eights<EIGHTS>(x, dout + from, d);
#pragma unroll
                for (u32 e = 0; e < 8 * EIGHTS; e++) dv[e] = fma(w, x[e], dv[e]);
            }
        }
    };
    // The first own row that sees the key.
    const u32 at_first = shape.whole ? own.first_position : position;
    if (valid) add(row - (position - at_first), (u64)own.first_row + own.rows, at_first);
    for (u32 s = 0; valid && own.parent == NO_PARENT && s < shape.segments; s++) {
        const Segment child = segment_at(segments, s);
        if (child.parent == own.first_row && child.first_position > position && segment_ok(child, shape))
            add(child.first_row, (u64)child.first_row + child.rows, child.first_position);
    }
    float* to = dkv + ((u64)row * 2 * shape.kv_heads + kv_head) * d;
#pragma unroll
    for (u32 e = 0; e < 8 * EIGHTS; e++) {
        const u32 i = plain_at(e);
        if (i < d) {
            to[i] = dk[e];
            to[shape.kv_heads * d + i] = dv[e];
        }
    }
}

#define PLAIN_KERNELS(NAME, T, EIGHTS)                                                                                   \
    extern "C" __global__ void __launch_bounds__(128) NAME##_queries_##T(                                                \
        const T* q, const T* keys, const T* values, const u32* segments, const u32* tables, const T* out,                \
        const float* lse, const T* dout, const u32* of_row, float* delta, float* dq, ATTENTION_SHAPE, u32 d,             \
        float scale, float cap) {                                                                                        \
        begin();                                                                                                         \
        plain_queries<T, EIGHTS>(q, keys, values, segments, tables, out, lse, dout, of_row, delta, dq, SHAPE, d, scale,  \
                                 cap);                                                                                   \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) NAME##_keys_##T(                                                   \
        const T* q, const T* keys, const T* values, const u32* segments, const u32* tables, const float* lse,            \
        const T* dout, const u32* of_row, const float* delta, float* dkv, ATTENTION_SHAPE, u32 d, float scale,           \
        float cap) {                                                                                                     \
        begin();                                                                                                         \
        plain_keys<T, EIGHTS>(q, keys, values, segments, tables, lse, dout, of_row, delta, dkv, SHAPE, d, scale, cap);   \
    }
PLAIN_KERNELS(attention_backward_plain, bf16, NARROW)
PLAIN_KERNELS(attention_backward_plain, float, NARROW)
PLAIN_KERNELS(attention_backward_plain_wide, bf16, PLAIN_WIDE)
PLAIN_KERNELS(attention_backward_plain_wide, float, PLAIN_WIDE)

// ---- sinks ----------------------------------------------------------------------------------------------------------

/// grad = - the sum over rows of e^(sink - lse) dout . out, or grad +=. A block has a head, and a warp every 32nd row,
/// ascending; the warps' sums are added in order.
template <class T, class G>
__device__ __forceinline__ void sink_backward(const T* sinks, const T* out, const float* lse, const T* dout, G* grad,
                                              u32 rows, u32 heads, u32 d, u32 add) {
    __shared__ double sums[WARP];
    const u32 head = blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const float sink = to_f32(sinks[head]);
    double sum = 0.0;
#pragma unroll 4
    for (u32 row = warp; row < rows; row += blockDim.x / WARP) {
        const u64 place = (u64)row * heads + head;
        float mine = 0.0f;
        for (u32 i = lane; i < d; i += WARP) mine = fma(to_f32(dout[place * d + i]), to_f32(out[place * d + i]), mine);
        sum = sum - (double)exp_f32(sink - lse[place]) * (double)warp_sum(mine);
    }
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (u32 w = 1; w < blockDim.x / WARP; w++) sum = sum + sums[w];
    grad[head] = from_f32<G>((add ? to_f32(grad[head]) : 0.0f) + (float)sum);
}

#define SINK_BACKWARD(T, G)                                                                                              \
    extern "C" __global__ void __launch_bounds__(1024)                                                                   \
        sink_backward_##T##_##G(const T* sinks, const T* out, const float* lse, const T* dout, G* grad, u32 rows,        \
                                u32 heads, u32 d, u32 add) {                                                             \
        begin();                                                                                                         \
        sink_backward(sinks, out, lse, dout, grad, rows, heads, d, add);                                                 \
    }
SINK_BACKWARD(float, float)
SINK_BACKWARD(float, bf16)
SINK_BACKWARD(bf16, float)
SINK_BACKWARD(bf16, bf16)
