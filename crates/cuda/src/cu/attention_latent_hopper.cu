// Attention over latents by Hopper's own instructions, for segments of any number of rows: what attention_latent.cu
// does, to the bit, two groups of four warps multiplying together. On other cards the file is empty.
//
// A block has 64 rows. Of a unit of 64 keys each group computes the scores of 32, in the two chains; the groups
// exchange the largest ones and the weights, and each multiplies all weights with half the columns.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Shared memory of a block.
struct RowsShared {
    u8 *q, *keys, *weights; // keys: [2]
    float* tops;            // [2][UNIT], of a group's keys
    float4* sums;           // [UNIT], of 16 keys each
    __device__ __forceinline__ RowsShared(u8* at)
        : q(at), keys(q + KEY_PANELS * PANEL_BYTES), weights(keys + 2 * KEY_PANELS * PANEL_BYTES), tops((float*)(weights + PANEL_BYTES)),
          sums((float4*)(tops + 2 * UNIT)) {}
};

/// A group's scores of 32 keys, each two chains of every other step of 16 columns, and their sum.
__device__ __forceinline__ void two_chains(float (&out)[UNIT / 4], u32 rows, u32 keys) {
    float odd[UNIT / 4];
    begin_products();
#pragma unroll
    for (u32 t = 0; t < LATENT_KEY / STEP; t += 2) {
        multiply(out, rows_operand(rows, t), rows_operand(keys, t), t > 0);
        multiply(odd, rows_operand(rows, t + 1), rows_operand(keys, t + 1), t > 0);
    }
    end_products();
    wait_products<0>();
    hold(out);
    hold(odd);
#pragma unroll
    for (u32 i = 0; i < UNIT / 4; i++) out[i] = out[i] + odd[i];
}

template <int OWN>
__device__ __forceinline__ void hopper_group_rows(const RowsShared& shared, const bf16* keys, const u32* table, const Shape& shape,
                                                  u32 num_keys, const u32 (&row_keys)[2], bf16* out, float* lse, float scale) {
    // The group's panels of values: those of its half of the columns.
    constexpr u32 FIRST = 1 + OWN * 4, COPIED = OWN ? 5 : 0, COPIED_END = OWN ? KEY_PANELS : 5;
    const u32 lane = threadIdx.x % WARP, row = threadIdx.x % GROUP / WARP * TILE + lane / 4, end = (num_keys + UNIT - 1) / UNIT;
    const u32 q_at = shared_address(shared.q), weights_at = shared_address(shared.weights);
    PanelRows rows;
    u32 entries[4];
    auto read_entries = [&](u32 unit) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 key = unit * UNIT + i * KV_BLOCK;
            entries[i] = key < num_keys ? table[key / KV_BLOCK] : 0;
            if (!index_ok(BAD_KV_BLOCK, entries[i], shape.blocks)) entries[i] = 0;
        }
    };
    auto fetch = [&](u32 unit) {
        rows.find(keys, [&](u32 row) -> const bf16* {
            return unit * UNIT + row < num_keys ? keys + ((u64)entries[row / KV_BLOCK] * KV_BLOCK + row % KV_BLOCK) * LATENT_KEY : nullptr;
        });
#pragma unroll
        for (u32 panel = COPIED; panel < COPIED_END; panel++) rows.copy(shared.keys + unit % 2 * (KEY_PANELS * PANEL_BYTES), panel, 0);
        copy_async_commit();
        if (unit + 1 < end) read_entries(unit + 1);
    };
    read_entries(0);
    fetch(0);
    // The chunks before; in local memory, as it is touched once a chunk.
    volatile float before[2][UNIT + 2];
    float o[2][UNIT] = {};
    Sum sum[2] = {{MINUS_INFINITY, 0.0f}, {MINUS_INFINITY, 0.0f}};
    for (u32 unit = 0; unit < end; unit++) {
        copy_async_wait<0>();
        copied();
        __syncthreads();
        if (unit + 1 < end) fetch(unit + 1);
        const u32 keys_at = shared_address(shared.keys) + unit % 2 * (KEY_PANELS * PANEL_BYTES);
        float s[UNIT / 4], keep[2];
        two_chains(s, q_at, keys_at + OWN * 32 * 128);
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const u32 seen = seen_of(row_keys[r], unit);
            float top = MINUS_INFINITY;
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                float& x = s[j / 2 * 4 + 2 * r + j % 2];
                if (OWN * 32 + j / 2 * 8 + lane % 4 * 2 + j % 2 >= seen) x = MINUS_INFINITY;
                top = fmaxf(top, x);
            }
            top = row_max(top);
            if (lane % 4 == 0) shared.tops[OWN * UNIT + row + 8 * r] = top;
        }
        __syncthreads();
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const float top = fmaxf(shared.tops[row + 8 * r], shared.tops[UNIT + row + 8 * r]);
            const float max = fmaxf(sum[r].max, top * scale);
            keep[r] = max == sum[r].max ? 1.0f : exp2_fast(sum[r].max - max);
            sum[r].max = max;
            const float shift = max == MINUS_INFINITY ? 0.0f : max;
            float2 fresh;
#pragma unroll
            for (u32 part = 0; part < 2; part++) {
                float p[4];
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    float& x = s[(2 * part + j / 2) * 4 + 2 * r + j % 2];
                    x = p[j] = exp2_fast(fma(x, scale, -shift));
                }
                (part ? fresh.y : fresh.x) = row_sum((p[0] + p[1]) + (p[2] + p[3]));
            }
            if (lane % 4 == 0) ((float2*)&shared.sums[row + 8 * r])[OWN] = fresh;
        }
        put_half<OWN>(shared.weights, s);
        if (keep[0] != 1.0f || keep[1] != 1.0f) {
#pragma unroll
            for (u32 i = 0; i < 2 * UNIT; i++) o[i / UNIT][i % UNIT] = o[i / UNIT][i % UNIT] * keep[i % 4 / 2];
        }
        panels_sum(o[0], weights_at, keys_at + FIRST * PANEL_BYTES);
        panels_sum(o[1], weights_at, keys_at + (FIRST + 2) * PANEL_BYTES);
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const float4 fresh = shared.sums[row + 8 * r];
            sum[r].sum = fma(sum[r].sum, keep[r], (fresh.x + fresh.y) + (fresh.z + fresh.w));
        }
        wait_products<0>();
        hold(o[0]);
        hold(o[1]);
        const bool more = unit + 1 < end;
        if (more && unit % CHUNK_UNITS != CHUNK_UNITS - 1) continue;
        // The chunk's end.
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const u32 at = unit / CHUNK_UNITS;
            volatile float* b = before[r];
            auto own = [&](u32 j) -> float& { return o[j / 32][j % 32 / 2 * 4 + 2 * r + j % 2]; };
            if (at > 0) {
                Sum total = {b[0], b[1]};
                float kept = 1.0f, add = 0.0f;
                const bool sees = row_keys[r] > at * ATTENTION_CHUNK;
                if (sees) join(total, sum[r], kept, add);
                sum[r] = total;
#pragma unroll
                for (u32 j = 0; j < UNIT; j++) {
                    const float t = b[2 + j];
                    own(j) = sees ? joined(t, kept, own(j), add) : t;
                }
            }
            if (more) {
                b[0] = sum[r].max;
                b[1] = sum[r].sum;
                sum[r] = {MINUS_INFINITY, 0.0f};
#pragma unroll
                for (u32 j = 0; j < UNIT; j++) {
                    b[2 + j] = own(j);
                    own(j) = 0.0f;
                }
            }
        }
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        if (row_keys[r] == 0) continue;
        const float inverse = 1.0f / sum[r].sum;
        u32* to = (u32*)(out + (u64)(row + 8 * r) * LATENT_KEY) + lane % 4;
#pragma unroll
        for (u32 n = 0; n < 4; n++) to[(OWN * 4 + n) * 4] = 0;
        to += FIRST * 32;
        // Zeros lose their signs.
#pragma unroll
        for (u32 n = 0; n < UNIT / 2; n++) {
            const float* x = &o[n / 16][n % 16 * 4 + 2 * r];
            to[n * 4] = pack_bf16(x[0] * inverse + 0.0f, x[1] * inverse + 0.0f);
        }
        if (lse && OWN == 0 && lane % 4 == 0) lse[row + 8 * r] = log_sum_exp(sum[r]);
    }
}

__device__ __forceinline__ void hopper_latent_rows(const bf16* q, const bf16* keys, const u32* segments, const u32* tables, bf16* out,
                                                   float* lse, const Shape& shape, float scale) {
    u32 of, place;
    if (!find_tile(segments, shape.segments, shape.heads, UNIT, blockIdx.x, of, place)) return;
    const Segment segment = segment_at(segments, of);
    if (!segment_ok(segment, shape)) return;
    const u32 num_rows = segment.rows * shape.heads, first = ((num_rows + UNIT - 1) / UNIT - 1 - place) * UNIT;
    const u32 valid = min(num_rows - first, (u32)UNIT), warp = own_warp();
    const u64 at = (u64)segment.first_row * shape.heads + first;
    const RowsShared shared(aligned_shared());
    PanelRows rows;
    rows.find(q, [&](u32 row) -> const bf16* { return row < valid ? q + (at + row) * LATENT_KEY : nullptr; });
#pragma unroll
    for (u32 i = 0; i < KEY_PANELS; i++)
        if (i % 2 == warp / TEAM) rows.copy(shared.q, i, 0);
    u32 row_keys[2];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        const u32 row = warp % TEAM * TILE + threadIdx.x % WARP / 4 + 8 * r;
        row_keys[r] = row < valid ? segment.first_position + (first + row) / shape.heads + 1 : 0;
    }
    const u32 num_keys = segment.first_position + (first + valid - 1) / shape.heads + 1;
    out += at * LATENT_KEY;
    if (lse) lse += at;
    const u32* table = tables + segment.table;
    if (warp < TEAM) hopper_group_rows<0>(shared, keys, table, shape, num_keys, row_keys, out, lse, scale);
    else hopper_group_rows<1>(shared, keys, table, shape, num_keys, row_keys, out, lse, scale);
}
#endif

/// A block takes 64 rows of a segment.
extern "C" __global__ void __launch_bounds__(256, 1)
    attention_latent_hopper_tiles(const bf16* q, const bf16* keys, const u32* segments, const u32* tables, bf16* out, float* lse,
                                  ATTENTION_SHAPE, float scale) {
    begin();
    ON_HOPPER(hopper_latent_rows(q, keys, segments, tables, out, lse, SHAPE, scale);)
}
