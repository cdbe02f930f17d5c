// Gradients of attention over latents by Hopper's own instructions: what attention_backward_latent.cu does, with the
// same plan, tiles and pieces, two groups of four warps multiplying together. On other cards the file is empty.
//
// Rows of q, dO and keys lie in panels (attention_hopper.cuh). A step has 64 rows of queries and 64 keys. One group
// computes its scores and the other dO V^T; each gives the other half of its columns, turns the rest into weights, and
// has a part of the columns of the sums. A panel of what comes is filled again as soon as it has been read.
//
// A tile's dK and dV are two blocks: all sums of 64 keys do not fit the registers of one.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Half of a group's products, and the other group's products of the same columns: group OWN has columns 32 OWN and on.
/// `inboxes`: 8,192 bytes of each group.
template <int OWN>
__device__ __forceinline__ void exchange(const float (&all)[UNIT / 2], float (&own)[UNIT / 4], float (&other)[UNIT / 4], u8* inbox,
                                         u8* outbox) {
    const u32 at = threadIdx.x % GROUP;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const float* x = all + (1 - OWN) * 16 + 4 * i;
        ((float4*)outbox)[i * GROUP + at] = make_float4(x[0], x[1], x[2], x[3]);
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const float4 x = ((const float4*)inbox)[i * GROUP + at];
        other[4 * i] = x.x, other[4 * i + 1] = x.y, other[4 * i + 2] = x.z, other[4 * i + 3] = x.w;
    }
#pragma unroll
    for (u32 i = 0; i < 16; i++) own[i] = all[OWN * 16 + i];
    __syncthreads();
}

/// Writes sums of 64 rows: those that are there, N / 4 columns of 8 from `to` on.
template <int N>
__device__ __forceinline__ void put_sums(float* to, u32 pitch, const float (&sum)[N], u32 valid, float scale) {
    const u32 lane = threadIdx.x % WARP, row = threadIdx.x % GROUP / WARP * TILE + lane / 4;
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        if (row + 8 * r >= valid) continue;
        float* own = to + (u64)(row + 8 * r) * pitch + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < N / 4; n++) *(float2*)(own + n * 8) = make_float2(sum[4 * n + 2 * r] * scale, sum[4 * n + 2 * r + 1] * scale);
    }
}

// ---- dQ -------------------------------------------------------------------------------------------------------------

/// Shared memory of a block of queries.
struct QueriesShared {
    u8 *q, *douts, *keys, *box, *weights;
    __device__ __forceinline__ QueriesShared(u8* at)
        : q(at), douts(q + KEY_PANELS * PANEL_BYTES), keys(douts + VALUE_PANELS * PANEL_BYTES), box(keys + KEY_PANELS * PANEL_BYTES),
          weights(box + PANEL_BYTES) {}
};

/// A group's part of a block's queries. Group 0 has dO V^T and the first five panels of columns, group 1 the scores and
/// the others: as many products.
template <int OWN>
__device__ __forceinline__ void hopper_group_queries(const QueriesShared& shared, const bf16* keys, const u32* table, const Shape& shape,
                                                     u32 num_keys, const u32 (&row_keys)[2], const float (&log_sum)[2],
                                                     const float (&delta)[2], float* dq, u32 valid, float scale) {
    constexpr u32 FIRST = OWN ? 5 : 0, MIDDLE = OWN ? 7 : 3, LAST = OWN ? KEY_PANELS : 5;
    const u32 lane = threadIdx.x % WARP, end = (num_keys + UNIT - 1) / UNIT;
    const float log_scale = scale * LOG2_E;
    const u32 keys_at = shared_address(shared.keys), weights_at = shared_address(shared.weights);
    PanelRows rows;
    u32 entries[4];
    // A thread's rows are one of each block of the unit.
    auto read_entries = [&](u32 unit) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 key = unit * UNIT + i * KV_BLOCK;
            entries[i] = key < num_keys ? table[key / KV_BLOCK] : 0;
            if (!index_ok(BAD_KV_BLOCK, entries[i], shape.blocks)) entries[i] = 0;
        }
    };
    auto find = [&](u32 unit) {
        rows.find(keys, [&](u32 row) -> const bf16* {
            return unit * UNIT + row < num_keys ? keys + ((u64)entries[row / KV_BLOCK] * KV_BLOCK + row % KV_BLOCK) * LATENT_KEY : nullptr;
        });
    };
    read_entries(0);
    find(0);
#pragma unroll
    for (u32 panel = FIRST; panel < LAST; panel++) rows.copy(shared.keys, panel, 0);
    copy_async_commit();
    float first_sum[(MIDDLE - FIRST) * 32] = {}, last_sum[(LAST - MIDDLE) * 32] = {};
    for (u32 unit = 0; unit < end; unit++) {
        copy_async_wait<0>();
        copied();
        __syncthreads();
        const bool more = unit + 1 < end;
        if (more) read_entries(unit + 1);
        float all[UNIT / 2], own[UNIT / 4], other[UNIT / 4];
        if constexpr (OWN) panels_dot<LATENT_KEY / STEP>(all, shared_address(shared.q), keys_at);
        else panels_dot<LATENT_VALUE / STEP>(all, shared_address(shared.douts), keys_at + PANEL_BYTES);
        exchange<OWN>(all, own, other, OWN ? shared.box : shared.weights, OWN ? shared.weights : shared.box);
        const float(&s)[UNIT / 4] = OWN ? own : other;
        float(&d)[UNIT / 4] = OWN ? other : own;
        const u32 first_key = unit * UNIT + OWN * 32 + lane % 4 * 2;
#pragma unroll
        for (u32 i = 0; i < UNIT / 4; i++) {
            const u32 r = i % 4 / 2;
            const float p = exp2_fast(fma(s[i], log_scale, -log_sum[r]));
            d[i] = first_key + i / 4 * 8 + i % 2 < row_keys[r] ? p * (d[i] - delta[r]) : 0.0f;
        }
        put_half<OWN>(shared.weights, d);
        panels_sum(first_sum, weights_at, keys_at + FIRST * PANEL_BYTES);
        panels_sum(last_sum, weights_at, keys_at + MIDDLE * PANEL_BYTES);
        if (more) find(unit + 1);
        wait_products<1>();
        hold(first_sum);
        group_barrier<OWN>();
#pragma unroll
        for (u32 panel = FIRST; panel < MIDDLE; panel++)
            if (more) rows.copy(shared.keys, panel, 0);
        wait_products<0>();
        hold(last_sum);
        group_barrier<OWN>();
#pragma unroll
        for (u32 panel = MIDDLE; panel < LAST; panel++)
            if (more) rows.copy(shared.keys, panel, 0);
        copy_async_commit();
    }
    put_sums(dq + FIRST * 64, LATENT_KEY, first_sum, valid, scale);
    put_sums(dq + MIDDLE * 64, LATENT_KEY, last_sum, valid, scale);
}

/// A block takes 64 rows; `delta` is written for the keys' gradients.
__device__ __forceinline__ void hopper_latent_queries(const bf16* q, const bf16* keys, const u32* segments, const u32* tables,
                                                      const bf16* out, const float* lse, const bf16* dout, float* delta, float* dq,
                                                      u32 block, const Shape& shape, float scale) {
    const u32 warp = own_warp(), lane = threadIdx.x % WARP;
    u32 of, place;
    if (!find_tile(segments, shape.segments, shape.heads, UNIT, block, of, place)) return;
    const Segment segment = segment_at(segments, of);
    if (!segment_ok(segment, shape)) return;
    const u32 num_rows = segment.rows * shape.heads, first = ((num_rows + UNIT - 1) / UNIT - 1 - place) * UNIT;
    const u32 valid = min(num_rows - first, (u32)UNIT);
    const u64 at = (u64)segment.first_row * shape.heads + first;
    const QueriesShared shared(aligned_shared());
    PanelRows rows;
    rows.find(q, [&](u32 row) -> const bf16* { return row < valid ? q + (at + row) * LATENT_KEY : nullptr; });
#pragma unroll
    for (u32 i = 0; i < KEY_PANELS; i++)
        if (i % 2 == warp / TEAM) rows.copy(shared.q, i, 0);
    rows.find(dout, [&](u32 row) -> const bf16* { return row < valid ? dout + (at + row) * LATENT_KEY : nullptr; });
#pragma unroll
    for (u32 i = 0; i < VALUE_PANELS; i++)
        if (i % 2 == warp / TEAM) rows.copy(shared.douts, i, LATENT_FIRST);
    copy_async_commit();
    // A warp takes a row at a time, a lane two eights of it.
    float* deltas = (float*)shared.box;
#pragma unroll 4
    for (u32 row = warp; row < UNIT; row += 2 * TEAM) {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float x[8], y[8];
            const u64 from = (at + min(row, valid - 1)) * LATENT_KEY + LATENT_FIRST + i * (LATENT_VALUE / 2) + lane * 8;
            load8(dout + from, x);
            load8(out + from, y);
#pragma unroll
            for (u32 j = 0; j < 8; j++) sum = fma(x[j], y[j], sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) deltas[row] = sum;
        if (lane == 0 && row < valid) delta[at + row] = sum;
    }
    __syncthreads();
    u32 row_keys[2];
    float log_sum[2], own_delta[2];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        const u32 row = warp % TEAM * TILE + lane / 4 + 8 * r;
        row_keys[r] = row < valid ? segment.first_position + (first + row) / shape.heads + 1 : 0;
        log_sum[r] = row < valid ? lse[at + row] * LOG2_E : 0.0f;
        own_delta[r] = deltas[row];
    }
    const u32 num_keys = segment.first_position + (first + valid - 1) / shape.heads + 1;
    const u32* table = tables + segment.table;
    if (warp < TEAM)
        hopper_group_queries<0>(shared, keys, table, shape, num_keys, row_keys, log_sum, own_delta, dq + at * LATENT_KEY, valid, scale);
    else
        hopper_group_queries<1>(shared, keys, table, shape, num_keys, row_keys, log_sum, own_delta, dq + at * LATENT_KEY, valid, scale);
}

// ---- dK and dV ------------------------------------------------------------------------------------------------------

/// What goes with the queries of a step.
struct StepFields {
    float log_sum[UNIT], delta[UNIT];
    u32 bound[UNIT]; // own keys that a row sees
};

/// Shared memory of a block of keys.
struct KeysShared {
    u8 *keys, *q, *douts, *box, *weights;
    StepFields* fields; // [2]
    __device__ __forceinline__ KeysShared(u8* at)
        : keys(at), q(keys + KEY_PANELS * PANEL_BYTES), douts(q + KEY_PANELS * PANEL_BYTES), box(douts + VALUE_PANELS * PANEL_BYTES),
          weights(box + PANEL_BYTES), fields((StepFields*)(weights + PANEL_BYTES)) {}
};

/// The rows of a step, on their way to shared memory.
struct StepRows {
    const bf16* q;
    const bf16* dout;
    const float* lse;
    const float* delta;
    Queries queries;
    u32 heads;
    PanelRows rows;
    float coming_sum, coming_delta;
    u32 coming_bound;

    __device__ __forceinline__ void find() {
        const u64 at = (u64)queries.first_row * heads + queries.row;
        const u32 valid = queries.end > queries.row ? queries.end - queries.row : 0;
        rows.find(q, [&](u32 row) -> const bf16* { return row < valid ? q + (at + row) * LATENT_KEY : nullptr; });
        if (threadIdx.x < UNIT) {
            const bool is_there = threadIdx.x < valid;
            // A missing row has weights of 2^-infinity.
            coming_sum = is_there ? lse[at + threadIdx.x] * LOG2_E : -MINUS_INFINITY;
            coming_delta = is_there ? delta[at + threadIdx.x] : 0.0f;
            coming_bound = queries.bound ? queries.bound : (queries.row + threadIdx.x) / heads + 1;
        }
    }
    __device__ __forceinline__ void put(StepFields& to) const {
        if (threadIdx.x >= UNIT) return;
        to.log_sum[threadIdx.x] = coming_sum;
        to.delta[threadIdx.x] = coming_delta;
        to.bound[threadIdx.x] = coming_bound;
    }
    __device__ __forceinline__ void copy_q(u8* panels, u32 panel) const { rows.copy(panels, panel, 0); }
    /// Rows of dO lie as those of q.
    __device__ __forceinline__ void copy_dout(u8* panels, u32 panel) const {
        PanelRows of = rows;
#pragma unroll
        for (u32 i = 0; i < 4; i++) of.from[i] = dout + (rows.from[i] - q);
        of.copy(panels, panel, LATENT_FIRST);
    }
};

/// The weights of a group's half of a step: P, or the slopes P (dO V^T - delta) with `d`. `s`: scores of two parts.
template <int OWN, bool SLOPES>
__device__ __forceinline__ void step_weights(float (&out)[UNIT / 4], const float (&s)[UNIT / 4], const float (&d)[UNIT / 4],
                                             const StepFields& of, u32 key, float log_scale) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
        const u32 column = OWN * 32 + n * 8 + lane % 4 * 2;
        const float2 sum = *(const float2*)(of.log_sum + column), delta = *(const float2*)(of.delta + column);
        const uint2 bound = *(const uint2*)(of.bound + column);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float p = exp2_fast(fma(s[4 * n + i], log_scale, i % 2 ? -sum.y : -sum.x));
            if (key + i / 2 * 8 >= (i % 2 ? bound.y : bound.x)) p = 0.0f;
            out[4 * n + i] = SLOPES ? p * (d[4 * n + i] - (i % 2 ? delta.y : delta.x)) : p;
        }
    }
}

/// A group's part of dK of 64 keys: group 0 has dO V^T and the first five panels of columns, group 1 the scores and the
/// others. Each copies what its first products read.
template <int OWN>
__device__ __forceinline__ void hopper_group_keys(const KeysShared& shared, StepRows& coming, u32 first_key, float* to, u32 valid,
                                                  float scale) {
    constexpr u32 FIRST = OWN ? 5 : 0, MIDDLE = OWN ? 7 : 3, LAST = OWN ? KEY_PANELS : 5;
    const u32 key = first_key + threadIdx.x % GROUP / WARP * TILE + threadIdx.x % WARP / 4;
    const float log_scale = scale * LOG2_E;
    const u32 keys_at = shared_address(shared.keys), q_at = shared_address(shared.q), douts_at = shared_address(shared.douts);
    const u32 weights_at = shared_address(shared.weights);
    coming.find();
#pragma unroll
    for (u32 panel = 0; panel < (OWN ? KEY_PANELS : VALUE_PANELS); panel++)
        OWN ? coming.copy_q(shared.q, panel) : coming.copy_dout(shared.douts, panel);
    copy_async_commit();
    copy_async_wait<0>();
    copied();
    __syncthreads();
    float first_sum[(MIDDLE - FIRST) * 32] = {}, last_sum[(LAST - MIDDLE) * 32] = {};
    bool more = true;
    for (u32 buffer = 0; more; buffer ^= 1) {
        coming.put(shared.fields[buffer]);
        copy_async_wait<0>();
        copied();
        group_barrier<OWN>();
        more = coming.queries.next();
        float all[UNIT / 2], own[UNIT / 4], other[UNIT / 4];
        if constexpr (OWN) panels_dot<LATENT_KEY / STEP>(all, keys_at, q_at);
        else panels_dot<LATENT_VALUE / STEP>(all, keys_at + PANEL_BYTES, douts_at);
        if (more) coming.find();
        if constexpr (!OWN) {
            // dO has been read.
            group_barrier<OWN>();
#pragma unroll
            for (u32 panel = 0; panel < VALUE_PANELS; panel++)
                if (more) coming.copy_dout(shared.douts, panel);
            copy_async_commit();
        }
        exchange<OWN>(all, own, other, OWN ? shared.box : shared.weights, OWN ? shared.weights : shared.box);
        step_weights<OWN, true>(own, OWN ? own : other, OWN ? other : own, shared.fields[buffer], key, log_scale);
        put_half<OWN>(shared.weights, own);
        panels_sum(first_sum, weights_at, q_at + FIRST * PANEL_BYTES);
        panels_sum(last_sum, weights_at, q_at + MIDDLE * PANEL_BYTES);
        wait_products<0>();
        hold(first_sum);
        hold(last_sum);
        if constexpr (OWN) {
            group_barrier<OWN>();
#pragma unroll
            for (u32 panel = FIRST; panel < LAST; panel++)
                if (more) coming.copy_q(shared.q, panel);
            // The other group has read its panels.
            asm volatile("bar.sync 3, 256;" ::: "memory");
#pragma unroll
            for (u32 panel = 0; panel < FIRST; panel++)
                if (more) coming.copy_q(shared.q, panel);
            copy_async_commit();
        } else asm volatile("bar.arrive 3, 256;" ::: "memory");
    }
    put_sums(to + FIRST * 64, 2 * LATENT_KEY, first_sum, valid, scale);
    put_sums(to + MIDDLE * 64, 2 * LATENT_KEY, last_sum, valid, scale);
}

/// A group's part of dV of 64 keys: some of the elements of the scores, and half the columns. It copies what it reads.
template <int OWN>
__device__ __forceinline__ void hopper_group_values(const KeysShared& shared, StepRows& coming, u32 first_key, float* to, u32 valid,
                                                    float scale) {
    constexpr u32 FIRST = OWN ? 5 : 0, LAST = OWN ? KEY_PANELS : 5, SUMMED = OWN * 4;
    const u32 key = first_key + threadIdx.x % GROUP / WARP * TILE + threadIdx.x % WARP / 4;
    const float log_scale = scale * LOG2_E;
    const u32 keys_at = shared_address(shared.keys), q_at = shared_address(shared.q), douts_at = shared_address(shared.douts);
    const u32 weights_at = shared_address(shared.weights);
    auto copy_q = [&]() {
#pragma unroll
        for (u32 panel = FIRST; panel < LAST; panel++) coming.copy_q(shared.q, panel);
    };
    auto copy_douts = [&]() {
#pragma unroll
        for (u32 panel = SUMMED; panel < SUMMED + 4; panel++) coming.copy_dout(shared.douts, panel);
    };
    coming.find();
    copy_q();
    copy_douts();
    copy_async_commit();
    copy_async_wait<0>();
    copied();
    __syncthreads();
    float first_sum[UNIT] = {}, last_sum[UNIT] = {};
    bool more = true, is_first = true;
    for (u32 buffer = 0; more; buffer ^= 1) {
        coming.put(shared.fields[buffer]);
        copy_async_wait<1>();
        copied();
        group_barrier<OWN>();
        more = coming.queries.next();
        float all[UNIT / 2], own[UNIT / 4], other[UNIT / 4];
        panels_dot<(LAST - FIRST) * 4>(all, keys_at, q_at, FIRST * 4);
        group_barrier<OWN>();
        if (more) {
            coming.find();
            copy_q();
        }
        copy_async_commit();
        // Group 0 has read the weights before, where group 1 writes now.
        if (OWN && !is_first) asm volatile("bar.sync 3, 256;" ::: "memory");
        is_first = false;
        exchange<OWN>(all, own, other, OWN ? shared.box : shared.weights, OWN ? shared.weights : shared.box);
#pragma unroll
        for (u32 i = 0; i < UNIT / 4; i++) own[i] = OWN ? other[i] + own[i] : own[i] + other[i];
        step_weights<OWN, false>(own, own, own, shared.fields[buffer], key, log_scale);
        copy_async_wait<1>();
        put_half<OWN>(shared.weights, own);
        panels_sum(first_sum, weights_at, douts_at + SUMMED * PANEL_BYTES);
        panels_sum(last_sum, weights_at, douts_at + (SUMMED + 2) * PANEL_BYTES);
        wait_products<0>();
        hold(first_sum);
        hold(last_sum);
        if (!OWN && more) asm volatile("bar.arrive 3, 256;" ::: "memory");
        group_barrier<OWN>();
        if (more) copy_douts();
        copy_async_commit();
    }
    put_sums(to + SUMMED * 64, 2 * LATENT_KEY, first_sum, valid, 1.0f);
    put_sums(to + (SUMMED + 2) * 64, 2 * LATENT_KEY, last_sum, valid, 1.0f);
}

/// A block takes dK of an item's 64 keys, the one after it dV.
__device__ __forceinline__ void hopper_latent_keys(const bf16* q, const bf16* keys, const u32* segments, const u32* tables,
                                                   const float* lse, const bf16* dout, const float* delta, const u32* counts,
                                                   const Tile* tiles, const Item* items, float* parts, float* dkv,
                                                   const Shape& shape, float scale) {
    const u32 warp = own_warp();
    if (blockIdx.x / 2 >= counts[0]) return;
    const Item item = items[blockIdx.x / 2];
    const Tile tile = tiles[item.tile];
    const Segment segment = segment_at(segments, tile.segment);
    const u32 first_key = tile.key, valid = min(segment.rows - first_key, (u32)UNIT);
    const KeysShared shared(aligned_shared());
    PanelRows rows;
    rows.find(keys, [&](u32 row) -> const bf16* {
        const u32 position = segment.first_position + first_key + row;
        if (row >= valid) return nullptr;
        const u32 entry = tables[segment.table + position / KV_BLOCK];
        if (!index_ok(BAD_KV_BLOCK, entry, shape.blocks)) return nullptr;
        return keys + ((u64)entry * KV_BLOCK + position % KV_BLOCK) * LATENT_KEY;
    });
#pragma unroll
    for (u32 i = 0; i < KEY_PANELS; i++)
        if (i % 2 == warp / TEAM) rows.copy(shared.keys, i, 0);
    StepRows coming = {q, dout, lse, delta,
                       Queries(segments, shape, shape.heads, segment, tile, item.piece, latent_pieces(tile, shape.heads)),
                       shape.heads, {}, 0.0f, 0.0f, 0};
    // The first piece's results go where the sums will be.
    const u32 part_row = tile.first_part + (item.piece - 1) * UNIT;
    float* to = item.piece == 0 ? dkv + (u64)(segment.first_row + first_key) * 2 * LATENT_KEY : parts + (u64)part_row * 2 * LATENT_KEY;
    if (blockIdx.x % 2 == 0) {
        if (warp < TEAM) hopper_group_keys<0>(shared, coming, first_key, to, valid, scale);
        else hopper_group_keys<1>(shared, coming, first_key, to, valid, scale);
        return;
    }
    to += LATENT_KEY;
    for (u32 i = threadIdx.x; i < valid * (LATENT_FIRST / 4); i += 2 * GROUP)
        *(float4*)(to + (u64)(i / (LATENT_FIRST / 4)) * 2 * LATENT_KEY + i % (LATENT_FIRST / 4) * 4) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    to += LATENT_FIRST;
    if (warp < TEAM) hopper_group_values<0>(shared, coming, first_key, to, valid, scale);
    else hopper_group_values<1>(shared, coming, first_key, to, valid, scale);
}
#endif

/// The first block makes the plan for the keys' kernel, which is next.
extern "C" __global__ void __launch_bounds__(256, 1) attention_backward_latent_hopper_queries(
    const bf16* q, const bf16* keys, const u32* segments, const u32* tables, const bf16* out, const float* lse, const bf16* dout,
    float* delta, float* dq, u32* counts, u32* of_row, u32* firsts, Tile* tiles, Item* items, ATTENTION_SHAPE, float scale) {
    begin();
    ON_HOPPER(if (blockIdx.x > 0) hopper_latent_queries(q, keys, segments, tables, out, lse, dout, delta, dq, blockIdx.x - 1, SHAPE,
                                                        scale);
              else make_latent_plan(segments, Plan{counts, of_row, firsts, tiles, items, 0, 0}, SHAPE);)
}

/// Two blocks of neighbouring numbers take an item: dK, and dV.
extern "C" __global__ void __launch_bounds__(256, 1) attention_backward_latent_hopper_keys(
    const bf16* q, const bf16* keys, const u32* segments, const u32* tables, const float* lse, const bf16* dout, const float* delta,
    const u32* counts, const Tile* tiles, const Item* items, float* parts, float* dkv, ATTENTION_SHAPE, float scale) {
    begin();
    ON_HOPPER(hopper_latent_keys(q, keys, segments, tables, lse, dout, delta, counts, tiles, items, parts, dkv, SHAPE, scale);)
}
