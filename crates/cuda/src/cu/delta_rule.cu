// The gated delta rule, row by row: the forward pass, for any number of rows of each segment.
//
// The state's columns are held as in `delta_scan.cuh`. Rows before and after a row are no part of its arithmetic: its
// bits are the same in a pass of one row and of a thousand.

template <class T>
struct RuleArgs {
    const T* qkv;
    const float* gates;
    const u32 *places, *segments;
    float* states;
    T* out;
    float* rest;
    DeltaHeads heads;
    u32 rows, places_count, wave;
};

/// grid: (columns of a head / 64 x H, S), a head's columns first.
template <class T>
__device__ __forceinline__ void delta_rule(const RuleArgs<T>& a, ScanShared<T>& shared) {
    constexpr u32 ROWS = Stored<T>::TILE_ROWS;
    const DeltaHeads& h = a.heads;
    const u32 dk = h.key_dim, dv = h.value_dim, width = h.value_width();
    const u32 parts = tiles_of(dv, SCAN_COLUMNS), head = blockIdx.x / parts, first_column = blockIdx.x % parts * SCAN_COLUMNS;
    const Segment is = segment_at(a.segments, blockIdx.y, a.rows);
    if (!is_of_wave(is, a.wave)) return;
    const u32 from = a.places[blockIdx.y * 2];
    u32 to = a.places[blockIdx.y * 2 + 1];
    const u32 edges = a.rest ? tiles_of(is.rows, STATE_CHUNK) : 0;
    if (to != NO_STATE && !index_ok(BAD_ROW, to + edges, a.places_count)) to = NO_STATE;
    const bool begins = from != NO_STATE && index_ok(BAD_ROW, from, a.places_count);

    const u32 lane = threadIdx.x % WARP, j = lane / 4, warp_column = first_column + threadIdx.x / WARP * 16;
    const u32 column = warp_column + lane % 4 * 4, own = warp_column + own_column(lane);
    const bool has_columns = warp_column < dv, writes = has_columns && lane % 8 < 4;
    const u64 size = (u64)h.value_heads * dk * dv, at = (u64)head * dk * dv;
    const ScanFrom<T> operands = {a.qkv, a.qkv + 2 * h.key_width(), a.gates, h.conv_width(), head, first_column, h};
    float s[OWN_ROWS][4] = {}, k[OWN_ROWS], again[OWN_ROWS], q[OWN_ROWS] = {}, with_q[4] = {};
    bring(operands, shared, is.first, min(is.rows, ROWS));
    if (begins && has_columns) own_state<false>(a.states + from * size + at, s, j, column, dk, dv);
    const bool writes_rest = a.rest && writes;
    // Outputs lag two rows: the first that is written, in the third step, is of the first row.
    T* out = a.out + (u64)is.first * width + head * dv + own - 2 * (u64)width;
    float* rest = a.rest + (u64)is.first * width + head * dv + own;
    for (u32 row = 0; row < is.rows; row += ROWS) {
        const u32 parity = row / ROWS % 2, left = is.rows - row;
        widen(shared, parity);
        if (left > ROWS) bring(operands, shared, is.first + row + ROWS, min(left - ROWS, ROWS));
        __syncthreads();
        if (edges && row % STATE_CHUNK == 0 && to != NO_STATE && has_columns) {
            own_state<true>(a.states + (to + row / STATE_CHUNK) * size + at, s, j, column, dk, dv);
        }
        const ScanTile<float, ROWS>& tile = shared.tiles[parity];
        own_rows(tile.k[0], j, k);
        const float *of_q = tile.q[0], *of_k = tile.k[0], *v = &tile.v[0][own - first_column], *gates = shared.gates[parity][0];
#pragma unroll 1
        for (u32 i = 0; i < min(left, ROWS); i++) {
            const float2 gate = *(const float2*)gates;
            float with_k[4] = {};
            dot_own(s, k, with_k);
            // Loads k of the next row (or of no row) long before it is needed; and this row's again.
            own_rows(of_k + HEAD_MAX, j, k);
            own_rows(of_k, j, again);
            of_k += HEAD_MAX;
            const float r = fma(-gate.x, sum_columns(with_k, lane), *v);
            // For the rows before, as lanes wait for each other: sums of the last but one, products of the last.
            const float o = sum_columns(with_q, lane);
            if (writes && row + i > 1) *out = from_f32<T>(o);
#pragma unroll
            for (u32 c = 0; c < 4; c++) with_q[c] = 0.0f;
            dot_own(s, q, with_q);
            own_rows(of_q, j, q);
            float u[4];
            of_columns(gate.y * r, lane, u);
            const float decay = after(gate.x, u[3]);
#pragma unroll
            for (u32 e = 0; e < OWN_ROWS; e++) {
#pragma unroll
                for (u32 c = 0; c < 4; c++) s[e][c] = fma(again[e], u[c], (e < OWN_ROWS / 2 ? gate.x : decay) * s[e][c]);
            }
            of_q += HEAD_MAX, v += SCAN_COLUMNS, gates += 2;
            if (writes_rest) *rest = r;
            rest += width, out += width;
        }
    }
    if (to != NO_STATE && has_columns) own_state<true>(a.states + (to + edges) * size + at, s, j, column, dk, dv);
    const float o = sum_columns(with_q, lane);
    if (writes && is.rows > 1) *out = from_f32<T>(o);
    float last[4] = {};
    dot_own(s, q, last);
    const float last_o = sum_columns(last, lane);
    if (writes && is.rows > 0) out[width] = from_f32<T>(last_o);
}

#define DELTA_RULE(T, BLOCKS)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(SCAN_THREADS, BLOCKS)                                                                     \
        delta_rule_##T(const T* qkv, const float* gates, const u32* places, const u32* segments, float* states, T* out, float* rest,       \
                       u32 key_heads, u32 value_heads, u32 key_dim, u32 value_dim, u32 rows, u32 places_count, u32 wave) {                 \
        begin();                                                                                                                           \
        extern __shared__ __align__(16) u8 shared[];                                                                                       \
        const DeltaHeads heads = {key_heads, value_heads, key_dim, value_dim};                                                             \
        delta_rule<T>({qkv, gates, places, segments, states, out, rest, heads, rows, places_count, wave},                                  \
                      *(ScanShared<T>*)shared);                                                                                            \
    }
DELTA_RULE(float, 2)
DELTA_RULE(bf16, 3)
