// The gradient of the gated delta rule, step 1: the gradient of each state, row by row from the last one of a segment.
//
// D = dL/dS[t], with what row t itself takes from it; du = D^T k, w = beta du; then e^g (D - k w^T) is the gradient of S[t-1] as the rows
// after it see it. Columns are independent of each other, as in the forward pass.

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

/// Operands of some rows, as f32. `gates`: e^g, then beta.
struct ReverseTile {
    float k[TILE_ROWS][HEAD_MAX], q[TILE_ROWS][HEAD_MAX], d[TILE_ROWS][SCAN_COLUMNS], gates[TILE_ROWS][2];
};

template <class T>
struct ReverseNext {
    Eight<T> q, k, d;
    float gate;
};

template <class T>
__device__ __forceinline__ void bring(const ReverseArgs<T>& a, u32 row, u32 count, u32 head, u32 first_column, ReverseNext<T>& next) {
    const DeltaHeads& h = a.heads;
    const u32 i = threadIdx.x / 16, c = threadIdx.x % 16 * 8;
    const T* of = a.qkv + (u64)(row + i) * h.conv_width() + h.key_of(head) * h.key_dim + c;
    next.q.clear(), next.k.clear(), next.d.clear();
    if (i < count && c < h.key_dim) {
        next.q.load(of);
        next.k.load(of + h.key_width());
    }
    const u32 id = threadIdx.x / 8, cd = threadIdx.x % 8 * 8;
    if (id < count && id < TILE_ROWS && first_column + cd < h.value_dim) {
        next.d.load(a.dout + (u64)(row + id) * h.value_width() + head * h.value_dim + first_column + cd);
    }
    // Threads that bring nothing of d bring the gates.
    const u32 ig = (threadIdx.x - 64) / 2, beta = threadIdx.x % 2;
    next.gate = 0.0f;
    if (threadIdx.x >= 64 && ig < count) next.gate = a.gates[((u64)(row + ig) * 2 + beta) * h.value_heads + head];
}

template <class T>
__device__ __forceinline__ void keep(ReverseTile& tile, const ReverseNext<T>& next) {
    const u32 i = threadIdx.x / 16, c = threadIdx.x % 16 * 8;
    next.q.store(&tile.q[i][c]);
    next.k.store(&tile.k[i][c]);
    if (threadIdx.x < 64) next.d.store(&tile.d[threadIdx.x / 8][threadIdx.x % 8 * 8]);
    const u32 gate = threadIdx.x - 64;
    if (gate < 2 * TILE_ROWS) tile.gates[gate / 2][gate % 2] = gate % 2 ? next.gate : exp_f32(next.gate);
}

/// Adds what the children of a segment have left at the places that they begin with, in their order.
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
__device__ __forceinline__ void delta_reverse(const ReverseArgs<T>& a) {
    __shared__ __align__(16) ReverseTile tiles[2];
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
    float d[OWN_ROWS][4] = {}, k[OWN_ROWS], q[OWN_ROWS], x[4];
    ReverseNext<T> next;
    u32 tile_row = is.rows > 0 ? (is.rows - 1) / TILE_ROWS * TILE_ROWS : 0;
    bring(a, is.first + tile_row, is.rows - tile_row, head, first_column, next);
    if (a.wave == 1 && has_columns) add_children(a, is, d, at, size, j, column, lane);
    if (has_columns) own_state<true>(a.d_states + (place + edges) * size + at, d, j, column, dk, dv);
    for (u32 end = is.rows; end > 0; end = tile_row, tile_row -= TILE_ROWS) {
        ReverseTile& tile = tiles[tile_row / TILE_ROWS % 2];
        keep(tile, next);
        __syncthreads();
        if (tile_row > 0) bring(a, is.first + tile_row - TILE_ROWS, TILE_ROWS, head, first_column, next);
        u32 i = end - tile_row - 1;
        own_rows(tile.q[i], j, q);
        own_rows(tile.k[i], j, k);
        load4(&tile.d[i][column_in_block], x);
        add_product(d, q, x);
        float* to = a.d_rest + (u64)(is.first + tile_row + i) * width + head * dv + own;
#pragma unroll 2
        for (; i > 0; i--) {
            const float decay = tile.gates[i][0], beta = tile.gates[i][1];
            own_rows(tile.q[i - 1], j, q);
            load4(&tile.d[i - 1][column_in_block], x);
            float sum[4] = {};
            dot_own(d, k, sum);
            const float du = sum_columns(sum, lane);
            // What does not need it, while lanes wait for each other.
            shrink(d, decay);
            add_product(d, q, x);
            of_columns(-decay * (beta * du), lane, x);
            add_product(d, k, x);
            own_rows(tile.k[i - 1], j, k);
            if (writes) *to = du;
            to -= width;
        }
        float sum[4] = {};
        dot_own(d, k, sum);
        const float decay = tile.gates[0][0], du = sum_columns(sum, lane);
        shrink(d, decay);
        of_columns(-decay * (tile.gates[0][1] * du), lane, x);
        add_product(d, k, x);
        if (writes) *to = du;
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
        const DeltaHeads heads = {key_heads, value_heads, key_dim, value_dim};                                                             \
        delta_reverse<T>({qkv, gates, places, segments, dout, d_rest, d_states, heads, rows, segments_count, places_count, wave});         \
    }
DELTA_REVERSE(float, 2)
DELTA_REVERSE(bf16, 3)
