// The gradient of the gated delta rule, step 1: the gradient of each state, row by row from the last one of a segment.
//
// D = dL/dS[t], row t's own part included; du = D^T k, w = beta du; then e^g (D - k w^T) is the gradient of S[t-1] by
// the rows after it. Columns are independent of each other, as in the forward pass.

template <class T>
struct ReverseArgs {
    const T* qkv;
    const float* gates;
    const u32 *places, *segments;
    const T* dout;
    float *d_rest, *d_states;
    DeltaHeads heads;
    u32 rows, segments_count, places_count, wave;
};

/// Adds what the children of a segment have left at the places that they begin with, in order.
template <class T>
__device__ __forceinline__ void add_children(const ReverseArgs<T>& a, const Segment& is, float (&d)[OWN_ROWS][4], u64 at, u64 size, u32 j,
                                             u32 column, u32 lane) {
    const DeltaHeads& h = a.heads;
    for (u32 from = 0; from < a.segments_count; from += WARP) {
        u32 left = __ballot_sync(ALL_LANES, from + lane < a.segments_count && is_child(a.segments, from + lane, is));
        for (; left; left &= left - 1) {
            const u32 place = a.places[(from + __ffs(left) - 1) * 2 + 1];
            if (place == NO_STATE || !index_ok(BAD_ROW, place, a.places_count)) continue;
            float child[OWN_ROWS][4] = {};
            own_state<false>(a.d_states + place * size + at, child, j, column, h.key_dim, h.value_dim);
#pragma unroll
            for (u32 e = 0; e < OWN_ROWS; e++) {
#pragma unroll
                for (u32 c = 0; c < 4; c++) d[e][c] = d[e][c] + child[e][c];
            }
        }
    }
}

/// d += x y^T.
__device__ __forceinline__ void add_product(float (&d)[OWN_ROWS][4], const float (&x)[OWN_ROWS], const float (&y)[4]) {
#pragma unroll
    for (u32 e = 0; e < OWN_ROWS; e++) {
#pragma unroll
        for (u32 c = 0; c < 4; c++) d[e][c] = fma(x[e], y[c], d[e][c]);
    }
}

/// d = by d.
__device__ __forceinline__ void shrink(float (&d)[OWN_ROWS][4], float by) {
#pragma unroll
    for (u32 e = 0; e < OWN_ROWS; e++) {
#pragma unroll
        for (u32 c = 0; c < 4; c++) d[e][c] = by * d[e][c];
    }
}

/// grid: (columns of a head / 64 x H, S), a head's columns first. Waves: children before their parents.
template <class T>
__device__ __forceinline__ void delta_reverse(const ReverseArgs<T>& a, ScanShared<T>& shared) {
    constexpr u32 ROWS = Stored<T>::TILE_ROWS;
    const DeltaHeads& h = a.heads;
    const u32 dk = h.key_dim, dv = h.value_dim, width = h.value_width();
    const u32 parts = tiles_of(dv, SCAN_COLUMNS), head = blockIdx.x / parts, first_column = blockIdx.x % parts * SCAN_COLUMNS;
    const Segment is = segment_at(a.segments, blockIdx.y, a.rows);
    if (!is_of_wave(is, a.wave)) return;
    const u32 place = a.places[blockIdx.y * 2 + 1], edges = tiles_of(is.rows, STATE_CHUNK);
    if (place == NO_STATE || !index_ok(BAD_ROW, place + edges, a.places_count)) return;

    const u32 lane = threadIdx.x % WARP, j = lane / 4, warp_column = first_column + threadIdx.x / WARP * 16;
    const u32 column = warp_column + lane % 4 * 4, own = warp_column + own_column(lane), column_in_block = column - first_column;
    const bool has_columns = warp_column < dv, writes = has_columns && lane % 8 < 4;
    const u64 size = (u64)h.value_heads * dk * dv, at = (u64)head * dk * dv;
    const ScanFrom<T> operands = {a.qkv, a.dout, a.gates, width, head, first_column, h};
    float d[OWN_ROWS][4] = {}, k[OWN_ROWS], again[OWN_ROWS], q[OWN_ROWS], x[4];
    u32 tile_row = is.rows > 0 ? (is.rows - 1) / ROWS * ROWS : 0;
    bring(operands, shared, is.first + tile_row, is.rows - tile_row);
    if (a.wave == 1 && has_columns) add_children(a, is, d, at, size, j, column, lane);
    if (has_columns) own_state<true>(a.d_states + (place + edges) * size + at, d, j, column, dk, dv);
    float* to = a.d_rest + (u64)(is.first + is.rows - 1) * width + head * dv + own;
    for (u32 end = is.rows; end > 0; end = tile_row, tile_row -= ROWS) {
        const u32 parity = tile_row / ROWS % 2;
        widen(shared, parity);
        if (tile_row > 0) bring(operands, shared, is.first + tile_row - ROWS, ROWS);
        __syncthreads();
        const ScanTile<float, ROWS>& tile = shared.tiles[parity];
        const u32 last = end - tile_row - 1;
        const float *of_q = tile.q[last], *of_k = tile.k[last], *of_x = &tile.v[last][column_in_block], *gates = shared.gates[parity][last];
        own_rows(of_q, j, q);
        own_rows(of_k, j, k);
        load4(of_x, x);
        add_product(d, q, x);
#pragma unroll 1
        for (u32 i = 0; i <= last; i++) {
            const float2 gate = *(const float2*)gates;
            // The first row of a tile adds nothing of the row before it: that is in the next tile.
            const bool is_first = i == last;
            float sum[4] = {};
            dot_own(d, k, sum);
            own_rows(of_k, j, again);
            if (!is_first) of_q -= HEAD_MAX, of_k -= HEAD_MAX, of_x -= SCAN_COLUMNS, gates -= 2;
            own_rows(of_q, j, q);
            own_rows(of_k, j, k);
            load4(of_x, x);
            const float du = sum_columns(sum, lane);
            // Work that does not need the sum, while lanes wait for each other.
#pragma unroll
            for (u32 c = 0; c < 4; c++) x[c] = is_first ? 0.0f : x[c];
            shrink(d, gate.x);
            add_product(d, q, x);
            of_columns(-gate.x * (gate.y * du), lane, x);
            add_product(d, again, x);
            if (writes) *to = du;
            to -= width;
        }
        if (tile_row % STATE_CHUNK == 0 && has_columns) {
            own_state<true>(a.d_states + (place + tile_row / STATE_CHUNK) * size + at, d, j, column, dk, dv);
        }
    }
}

#define DELTA_REVERSE(T, BLOCKS)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(SCAN_THREADS, BLOCKS)                                                                     \
        delta_reverse_##T(const T* qkv, const float* gates, const u32* places, const u32* segments, const T* dout, float* d_rest,          \
                          float* d_states, u32 key_heads, u32 value_heads, u32 key_dim, u32 value_dim, u32 rows, u32 segments_count,       \
                          u32 places_count, u32 wave) {                                                                                    \
        begin();                                                                                                                           \
        extern __shared__ __align__(16) u8 shared[];                                                                                       \
        const DeltaHeads heads = {key_heads, value_heads, key_dim, value_dim};                                                             \
        delta_reverse<T>({qkv, gates, places, segments, dout, d_rest, d_states, heads, rows, segments_count, places_count, wave},         \
                         *(ScanShared<T>*)shared);                                                                                         \
    }
DELTA_REVERSE(float, 2)
DELTA_REVERSE(bf16, 3)
