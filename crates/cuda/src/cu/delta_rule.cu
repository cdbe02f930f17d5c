// The gated delta rule, row by row: the forward pass, of any number of rows of each segment.
//
// The state's columns are held as `delta_scan.cuh` says. What precedes and follows a row is no part of its arithmetic: its bits are the same
// in a pass of one row and of a thousand.

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

/// Operands of some rows, as f32. `gates`: e^g, then beta.
struct RuleTile {
    float k[TILE_ROWS][HEAD_MAX], q[TILE_ROWS][HEAD_MAX], v[TILE_ROWS][SCAN_COLUMNS], gates[TILE_ROWS][2];
};

/// What a thread brings of a tile: eight elements of q and of k, perhaps of v, and a gate.
template <class T>
struct RuleNext {
    Eight<T> q, k, v;
    float gate;
};

/// Begins to read a tile: rows `row` to `row + count` of the pass.
template <class T>
__device__ __forceinline__ void bring(const RuleArgs<T>& a, u32 row, u32 count, u32 head, u32 first_column, RuleNext<T>& next) {
    const DeltaHeads& h = a.heads;
    const u32 i = threadIdx.x / 16, c = threadIdx.x % 16 * 8;
    const T* of = a.qkv + (u64)(row + i) * h.conv_width() + h.key_of(head) * h.key_dim + c;
    next.q.clear(), next.k.clear(), next.v.clear();
    if (i < count && c < h.key_dim) {
        next.q.load(of);
        next.k.load(of + h.key_width());
    }
    const u32 iv = threadIdx.x / 8, cv = threadIdx.x % 8 * 8;
    if (iv < count && iv < TILE_ROWS && first_column + cv < h.value_dim) {
        next.v.load(a.qkv + (u64)(row + iv) * h.conv_width() + 2 * h.key_width() + head * h.value_dim + first_column + cv);
    }
    // Threads that bring nothing of v bring the gates.
    const u32 ig = (threadIdx.x - 64) / 2, beta = threadIdx.x % 2;
    next.gate = 0.0f;
    if (threadIdx.x >= 64 && ig < count) next.gate = a.gates[((u64)(row + ig) * 2 + beta) * h.value_heads + head];
}

template <class T>
__device__ __forceinline__ void keep(RuleTile& tile, const RuleNext<T>& next) {
    const u32 i = threadIdx.x / 16, c = threadIdx.x % 16 * 8;
    next.q.store(&tile.q[i][c]);
    next.k.store(&tile.k[i][c]);
    if (threadIdx.x < 64) next.v.store(&tile.v[threadIdx.x / 8][threadIdx.x % 8 * 8]);
    const u32 gate = threadIdx.x - 64;
    if (gate < 2 * TILE_ROWS) tile.gates[gate / 2][gate % 2] = gate % 2 ? next.gate : exp_f32(next.gate);
}

/// grid: (columns of a head / 64 x H, S), a head's columns first.
template <class T>
__device__ __forceinline__ void delta_rule(const RuleArgs<T>& a) {
    __shared__ __align__(16) RuleTile tiles[2];
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
    const u32 column = warp_column + lane % 4 * 4, own = warp_column + own_column(lane), own_in_block = own - first_column;
    const bool has_columns = warp_column < dv;
    const u64 size = (u64)h.value_heads * dk * dv, at = (u64)head * dk * dv;
    float s[OWN_ROWS][4] = {}, k[OWN_ROWS], q[OWN_ROWS] = {};
    RuleNext<T> next;
    bring(a, is.first, min(is.rows, (u32)TILE_ROWS), head, first_column, next);
    if (begins && has_columns) own_state<false>(a.states + from * size + at, s, j, column, dk, dv);
    const bool writes = has_columns && lane % 8 < 4;
    u64 place = (u64)is.first * width + head * dv + own;
    for (u32 row = 0; row < is.rows; row += TILE_ROWS) {
        RuleTile& tile = tiles[row / TILE_ROWS % 2];
        const u32 count = min(is.rows - row, (u32)TILE_ROWS);
        keep(tile, next);
        __syncthreads();
        if (row + TILE_ROWS < is.rows) {
            bring(a, is.first + row + TILE_ROWS, min(is.rows - row - TILE_ROWS, (u32)TILE_ROWS), head, first_column, next);
        }
        if (edges && row % STATE_CHUNK == 0 && to != NO_STATE && has_columns) {
            own_state<true>(a.states + (to + row / STATE_CHUNK) * size + at, s, j, column, dk, dv);
        }
        own_rows(tile.k[0], j, k);
#pragma unroll 2
        for (u32 i = 0; i < count; i++) {
            const float decay = tile.gates[i][0], beta = tile.gates[i][1], v = tile.v[i][own_in_block];
            float with_k[4] = {}, with_q[4];
            dot_own(s, k, with_k);
            // Of the row before, while lanes wait for each other.
            zeros_after(with_k, with_q);
            const float r = fma(-decay, sum_columns(with_k, lane), v);
            dot_own(s, q, with_q);
            const float o = sum_columns(with_q, lane);
            if (writes && row + i > 0) a.out[place - width] = from_f32<T>(o);
            own_rows(tile.q[i], j, q);
            float u[4];
            of_columns(beta * r, lane, u);
#pragma unroll
            for (u32 e = 0; e < OWN_ROWS; e++) {
#pragma unroll
                for (u32 c = 0; c < 4; c++) s[e][c] = fma(k[e], u[c], decay * s[e][c]);
            }
            own_rows(tile.k[(i + 1) % TILE_ROWS], j, k);
            if (a.rest && writes) a.rest[place] = r;
            place += width;
        }
    }
    if (to != NO_STATE && has_columns) own_state<true>(a.states + (to + edges) * size + at, s, j, column, dk, dv);
    float last[4] = {};
    dot_own(s, q, last);
    const float o = sum_columns(last, lane);
    if (writes && is.rows > 0) a.out[place - width] = from_f32<T>(o);
}

#define DELTA_RULE(T, BLOCKS)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(SCAN_THREADS, BLOCKS)                                                                     \
        delta_rule_##T(const T* qkv, const float* gates, const u32* places, const u32* segments, float* states, T* out, float* rest,       \
                       u32 key_heads, u32 value_heads, u32 key_dim, u32 value_dim, u32 rows, u32 places_count, u32 wave) {                 \
        begin();                                                                                                                           \
        const DeltaHeads heads = {key_heads, value_heads, key_dim, value_dim};                                                             \
        delta_rule<T>({qkv, gates, places, segments, states, out, rest, heads, rows, places_count, wave});                                 \
    }
DELTA_RULE(float, 2)
DELTA_RULE(bf16, 3)
