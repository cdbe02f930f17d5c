// The head: statistics of a row's logits, the tokens that are drawn from them, and their gradients.
//
// Logits come in tiles [rows, columns], of which a block takes one row's part of PART columns: (max, sum of exp(x -
// max), sum of (x - max) exp(x - max)) and one token's logit. Parts are merged in a fixed order. They begin at
// multiples of PART and their tree does not depend on the tile, so that a row's bits are a function of its logits.
//
// Drawing takes two uniform numbers of one counter: the first picks a part by its mass, when all are known; with the
// second each part has picked its own token, while it was in registers. So no logit is read twice.

/// Vocabulary columns of a part; a constant of the build, because the merge order depends on it.
#define PART 4096
#define PART_THREADS 256
/// Vectors of four columns that a thread has of a part: 256 threads x 4 x 4.
#define PART_VECTORS 4

/// True if lines of `cols` elements of 4 bytes can be read 16 bytes at a time.
__device__ __forceinline__ bool is_wide(const float* x, u32 cols) { return ((u64)x | (u64)cols * 4) % 16 == 0; }

/// Column of a part that is element `j` of a thread's vector `i`.
__device__ __forceinline__ u32 column(u32 i, u32 j) { return (i * PART_THREADS + threadIdx.x) * 4 + j; }

/// Scaled logits of a part of `width` columns; minus infinity beyond, which has no mass.
__device__ __forceinline__ void load_part(float (&x)[PART_VECTORS * 4], const float* logits, u32 width, bool wide,
                                          float inv_t) {
#pragma unroll
    for (u32 i = 0; i < PART_VECTORS; i++) {
        float4 v = make_float4(MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY);
        u32 at = column(i, 0);
        if (wide) {
            if (at < width) v = *(const float4*)(logits + at);
        } else {
            if (at + 0 < width) v.x = logits[at + 0];
            if (at + 1 < width) v.y = logits[at + 1];
            if (at + 2 < width) v.z = logits[at + 2];
            if (at + 3 < width) v.w = logits[at + 3];
        }
        x[i * 4 + 0] = v.x * inv_t;
        x[i * 4 + 1] = v.y * inv_t;
        x[i * 4 + 2] = v.z * inv_t;
        x[i * 4 + 3] = v.w * inv_t;
    }
}

/// x = cap tanh(x / cap), in place.
extern "C" __global__ void __launch_bounds__(256) cap_logits(float* x, u64 n, float cap) {
    begin();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = capped(x[i], cap);
}

/// Gives columns `at..at + count` of all rows of [rows, cols] a value.
extern "C" __global__ void __launch_bounds__(256) suppress_logits(float* x, u32 rows, u32 cols, u32 at, u32 count, float to) {
    begin();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * count) x[(u64)(i / count) * cols + at + i % count] = to;
}

/// Adds biases to the logits of some tokens of each row of [rows, cols], tokens from `first` on: ids, values:
/// [rows, per_row], none twice in a row.
extern "C" __global__ void __launch_bounds__(256)
bias_logits(float* x, u32 rows, u32 cols, u32 first, const u32* __restrict__ ids, const float* __restrict__ values,
            u32 per_row) {
    begin();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * per_row) return;
    u32 column = ids[i] - first; // Below `first` it wraps around, and what a row has less is never in a tile.
    if (column < cols) {
        float* at = x + (u64)(i / per_row) * cols + column;
        *at = *at + values[i];
    }
}

/// Gives the logits of the tokens that a row's mask leaves out a value: [rows, cols] of tokens from `first` on.
extern "C" __global__ void __launch_bounds__(256)
mask_logits(float* x, u64 n, u32 cols, u32 first, const u32* __restrict__ masks, u32 words, const u32* __restrict__ of_row,
            float to) {
    begin();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && is_masked(masks, words, of_row[i / cols], first + (u32)(i % cols))) x[i] = to;
}

/// Zeroes the gradients of the tokens that a row's mask leaves out; arguments of `mask_logits`.
#define ZERO_MASKED(T, type)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
    zero_masked_##type(T* x, u64 n, u32 cols, u32 first, const u32* __restrict__ masks, u32 words,                    \
                       const u32* __restrict__ of_row) {                                                              \
        begin();                                                                                                      \
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                           \
        if (i < n && is_masked(masks, words, of_row[i / cols], first + (u32)(i % cols))) x[i] = from_f32<T>(0.0f);    \
    }
ZERO_MASKED(float, f32)
ZERO_MASKED(bf16, bf16)

/// Zeroes columns `at..at + count` of all rows of [rows, cols].
extern "C" __global__ void __launch_bounds__(256) zero_columns(bf16* x, u32 rows, u32 cols, u32 at, u32 count) {
    begin();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * count) x[(u64)(i / count) * cols + at + i % count] = from_f32<bf16>(0.0f);
}

/// Sums of a block's parts, one a warp.
struct PartSums {
    float max[PART_THREADS / WARP], sum[PART_THREADS / WARP], weighted[PART_THREADS / WARP];
    u32 lowest[PART_THREADS / WARP];
};

__device__ __forceinline__ float tree_of_warps(const float* x) {
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

/// The largest of the block's; NaN is ignored.
__device__ __forceinline__ float part_max(const float (&x)[PART_VECTORS * 4], float* warps) {
    float max = x[0];
#pragma unroll
    for (u32 i = 1; i < PART_VECTORS * 4; i++) max = fmaxf(max, x[i]);
    max = warp_max(max);
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = max;
    __syncthreads();
    max = warps[0];
#pragma unroll
    for (u32 i = 1; i < PART_THREADS / WARP; i++) max = fmaxf(max, warps[i]);
    return max;
}

/// Replaces x by exp(x - max); writes the sums of each warp and returns the thread's own.
__device__ __forceinline__ float part_masses(float (&x)[PART_VECTORS * 4], float max, PartSums& sums) {
    float sum = 0.0f, weighted = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PART_VECTORS * 4; i++) {
        float d = x[i] - max;
        x[i] = exp_f32(d);
        // The comparison is false for NaN, which thus reaches the sums.
        weighted = fma(d < EXP_MIN ? EXP_MIN : d, x[i], weighted);
        sum = sum + x[i];
    }
    float warp_total = warp_sum(sum), warp_weighted = warp_sum(weighted);
    if (threadIdx.x % WARP == 0) {
        sums.sum[threadIdx.x / WARP] = warp_total;
        sums.weighted[threadIdx.x / WARP] = warp_weighted;
    }
    return sum;
}

/// Picks the column at which the running sum of masses passes `uniform` times the whole, in the order warp, lane,
/// element. Only its thread gets it; all others, and all of a row that is not finite, get PART.
__device__ __forceinline__ u32 pick_column(const float (&masses)[PART_VECTORS * 4], float mine, const float* warps,
                                           double uniform) {
    double total = 0.0, before = 0.0, rest = 0.0;
#pragma unroll
    for (u32 i = 0; i < PART_THREADS / WARP; i++) total += (double)warps[i];
    double wanted = uniform * total;
    u32 warp = PART_THREADS;
    // Rounding may leave `wanted` at the very end: then the last that has a mass is it. So below.
    for (u32 i = 0; i < PART_THREADS / WARP && !(before > wanted); i++) {
        if (warps[i] > 0.0f) {
            warp = i;
            rest = wanted - before;
        }
        before += (double)warps[i];
    }
    if (threadIdx.x / WARP != warp) return PART;
    double through = warp_scan((double)mine);
    u32 beyond = __ballot_sync(ALL_LANES, through > rest), heavy = __ballot_sync(ALL_LANES, mine > 0.0f);
    int lane = beyond != 0 ? __ffs((int)beyond) - 1 : 31 - __clz((int)heavy);
    if ((int)(threadIdx.x % WARP) != lane) return PART;
    rest -= through - (double)mine;
    u32 at = PART;
    bool found = false;
    double sum = 0.0;
#pragma unroll
    for (u32 i = 0; i < PART_VECTORS * 4; i++) {
        if (!found && masses[i] > 0.0f) at = column(i / 4, i % 4);
        sum += (double)masses[i];
        found = found || sum > rest;
    }
    return at;
}

/// The lowest column whose logit is the largest.
__device__ __forceinline__ u32 lowest_column(const float (&x)[PART_VECTORS * 4], float max, u32* warps) {
    u32 lowest = 0xffffffffu;
#pragma unroll
    for (u32 i = 0; i < PART_VECTORS * 4; i++) {
        if (x[i] == max) lowest = min(lowest, column(i / 4, i % 4));
    }
    lowest = __reduce_min_sync(ALL_LANES, lowest);
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = lowest;
    __syncthreads();
    lowest = warps[0];
#pragma unroll
    for (u32 i = 1; i < PART_THREADS / WARP; i++) lowest = min(lowest, warps[i]);
    return lowest;
}

/// The place of a block's part.
struct Place {
    const float* logits;
    u32 first; // vocabulary column
    u32 width;
    bool wide;
    PartStats* out;

    /// Block (x, y) has part x of the tile, row y. The tile begins at column `first` of a vocabulary of `parts` parts.
    __device__ __forceinline__ Place(const float* tile, u32 cols, u32 first, u32 parts, PartStats* stats)
        : logits(tile + (u64)blockIdx.y * cols + blockIdx.x * PART),
          first(first + blockIdx.x * PART),
          width(min((u32)PART, cols - blockIdx.x * PART)),
          wide(is_wide(tile, cols)),
          out(stats + (u64)blockIdx.y * parts + first / PART + blockIdx.x) {}
};

/// tile: [rows, cols] f32, unscaled; targets: [rows]; stats: [rows, parts].
extern "C" __global__ void __launch_bounds__(PART_THREADS)
parts_of_targets(const float* __restrict__ tile, u32 cols, u32 first, u32 parts, float inv_t,
                 const u32* __restrict__ targets, PartStats* stats) {
    begin();
    __shared__ PartSums sums;
    Place place(tile, cols, first, parts, stats);
    float x[PART_VECTORS * 4];
    load_part(x, place.logits, place.width, place.wide, inv_t);
    float max = part_max(x, sums.max);
    part_masses(x, max, sums);
    __syncthreads();
    if (threadIdx.x == 0) {
        // Below `first` it wraps around.
        u32 at = targets[blockIdx.y] - place.first;
        float logit = at < place.width ? place.logits[at] * inv_t : 0.0f;
        *place.out = PartStats{max, tree_of_warps(sums.sum), tree_of_warps(sums.weighted), logit, 0};
    }
}

/// Statistics of parts, each with its lowest token of the largest logit; arguments of `parts_of_targets`.
extern "C" __global__ void __launch_bounds__(PART_THREADS)
parts_of_largest(const float* __restrict__ tile, u32 cols, u32 first, u32 parts, float inv_t, PartStats* stats) {
    begin();
    __shared__ PartSums sums;
    Place place(tile, cols, first, parts, stats);
    float x[PART_VECTORS * 4];
    load_part(x, place.logits, place.width, place.wide, inv_t);
    float max = part_max(x, sums.max);
    u32 lowest = lowest_column(x, max, sums.lowest);
    part_masses(x, max, sums);
    __syncthreads();
    if (threadIdx.x == 0) {
        *place.out = PartStats{max, tree_of_warps(sums.sum), tree_of_warps(sums.weighted), max, place.first + lowest};
    }
}

/// Statistics of parts, each with a token drawn by its mass; arguments of `parts_of_targets`.
extern "C" __global__ void __launch_bounds__(PART_THREADS)
parts_of_draws(const float* __restrict__ tile, u32 cols, u32 first, u32 parts, float inv_t, const u32* __restrict__ keys,
               PartStats* stats) {
    begin();
    __shared__ PartSums sums;
    __shared__ double uniform;
    Place place(tile, cols, first, parts, stats);
    float x[PART_VECTORS * 4];
    load_part(x, place.logits, place.width, place.wide, inv_t);
    if (threadIdx.x == 0) {
        uint4 numbers = row_numbers(keys, blockIdx.y);
        uniform = unit_f64(numbers.z, numbers.w);
    }
    float max = part_max(x, sums.max);
    float mine = part_masses(x, max, sums);
    __syncthreads();
    u32 at = pick_column(x, mine, sums.sum, uniform);
    if (at < PART) {
        place.out->token = place.first + at;
        place.out->logit = place.logits[at] * inv_t;
    }
    if (threadIdx.x == 0) {
        place.out->max = max;
        place.out->sum = tree_of_warps(sums.sum);
        place.out->weighted = tree_of_warps(sums.weighted);
    }
}

// ---- rows -----------------------------------------------------------------------------------------------------------

/// A row's statistics, merged over its parts; every lane of the row's warp has them.
struct RowStats {
    float max;
    double sum, weighted;

    /// Lane i takes parts i, i + 32, ..: the order depends on the number of parts alone.
    __device__ __forceinline__ RowStats(const PartStats* row, u32 parts) {
        u32 lane = threadIdx.x % WARP;
        max = MINUS_INFINITY;
        for (u32 p = lane; p < parts; p += WARP) max = fmaxf(max, row[p].max);
        max = warp_max(max);
        sum = 0.0;
        weighted = 0.0;
        for (u32 p = lane; p < parts; p += WARP) {
            float d = row[p].max - max;
            double weight = (double)exp_f32(d), part_sum = (double)row[p].sum;
            sum += weight * part_sum;
            weighted += weight * ((double)row[p].weighted + (double)(d < EXP_MIN ? EXP_MIN : d) * part_sum);
        }
        sum = warp_sum_f64(sum);
        weighted = warp_sum_f64(weighted);
    }

    /// False if some logit is NaN or plus infinity, or all are minus infinity.
    __device__ __forceinline__ bool is_finite() const { return sum - sum == 0.0; }
};

/// Outputs of the head for each row.
struct HeadOut {
    float *logprobs, *lse, *entropy;

    __device__ __forceinline__ void set(u32 row, const RowStats& stats, float logit) const {
        double ln_sum = ln_f64(stats.sum);
        logprobs[row] = (float)(((double)logit - (double)stats.max) - ln_sum);
        lse[row] = (float)((double)stats.max + ln_sum);
        entropy[row] = (float)(ln_sum - stats.weighted / stats.sum);
    }

    __device__ __forceinline__ void set_not_finite(u32 row) const {
        float nan = as_f32(0x7fc00000u);
        logprobs[row] = nan;
        lse[row] = nan;
        entropy[row] = nan;
    }
};

/// Rows of a block: a warp each.
#define ROW_WARPS 4

/// Log-probability of targets, log-sum-exp, entropy: NaN for rows not finite. stats: [rows, parts] of `part` columns.
extern "C" __global__ void __launch_bounds__(ROW_WARPS * WARP)
rows_of_targets(const PartStats* __restrict__ stats, u32 rows, u32 parts, u32 part, u32 vocab,
                const u32* __restrict__ targets, float* logprobs, float* lse, float* entropy) {
    begin();
    u32 row = blockIdx.x * ROW_WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    const PartStats* mine = stats + (u64)row * parts;
    RowStats merged(mine, parts);
    if (threadIdx.x % WARP != 0) return;
    HeadOut out{logprobs, lse, entropy};
    if (!merged.is_finite()) return out.set_not_finite(row);
    u32 target = targets[row];
    // A target beyond the vocabulary is reported by --checked, and is NaN without it.
    if (!index_ok(BAD_TOKEN, target, vocab) || target >= vocab) return out.set_not_finite(row);
    out.set(row, merged, mine[target / part].logit);
}

/// The first part whose maximum is the row's.
__device__ __forceinline__ u32 part_of_largest(const PartStats* row, u32 parts, float max) {
    u32 lowest = parts;
    for (u32 p = threadIdx.x % WARP; p < parts; p += WARP) {
        if (row[p].max == max) lowest = min(lowest, p);
    }
    return __reduce_min_sync(ALL_LANES, lowest);
}

/// The part at which the running sum of masses passes `wanted`, else the last that has a mass.
__device__ __forceinline__ u32 part_of_draw(const PartStats* row, u32 parts, float max, double wanted) {
    u32 lane = threadIdx.x % WARP, chosen = 0;
    double before = 0.0;
    for (u32 first = 0; first < parts; first += WARP) {
        u32 p = first + lane;
        double mass = p < parts ? (double)exp_f32(row[p].max - max) * (double)row[p].sum : 0.0;
        double through = before + warp_scan(mass);
        u32 beyond = __ballot_sync(ALL_LANES, through > wanted), heavy = __ballot_sync(ALL_LANES, mass > 0.0);
        if (beyond != 0) return first + (u32)__ffs((int)beyond) - 1;
        if (heavy != 0) chosen = first + 31 - (u32)__clz((int)heavy);
        before = __shfl_sync(ALL_LANES, through, WARP - 1);
    }
    return chosen;
}

/// Log-probability, log-sum-exp and entropy for the drawn token, or for the largest when `greedy`. tokens: [rows],
/// written; 0xffffffff where the row is not finite.
extern "C" __global__ void __launch_bounds__(ROW_WARPS * WARP)
rows_of_draws(const PartStats* __restrict__ stats, u32 rows, u32 parts, const u32* __restrict__ keys, u32 greedy,
              u32* tokens, float* logprobs, float* lse, float* entropy) {
    begin();
    u32 row = blockIdx.x * ROW_WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    const PartStats* mine = stats + (u64)row * parts;
    RowStats merged(mine, parts);
    HeadOut out{logprobs, lse, entropy};
    bool first_lane = threadIdx.x % WARP == 0;
    if (!merged.is_finite()) {
        if (first_lane) {
            tokens[row] = 0xffffffffu;
            out.set_not_finite(row);
        }
        return;
    }
    u32 part;
    if (greedy) {
        part = part_of_largest(mine, parts, merged.max);
    } else {
        uint4 numbers = row_numbers(keys, row);
        part = part_of_draw(mine, parts, merged.max, unit_f64(numbers.x, numbers.y) * merged.sum);
    }
    if (first_lane) {
        tokens[row] = mine[part].token;
        out.set(row, merged, mine[part].logit);
    }
}

// ---- gradients ------------------------------------------------------------------------------------------------------

/// Columns of a block of `gradients`: eight a thread.
#define GRADIENT_COLUMNS 2048

/// d[r, v] = inv_t (dlogp (delta - p) - dH p (ln p + H)) with ln p = x - lse, times the slope of the cap if `cap` is
/// not 0, rounded to T; with listed tokens also inv_t p times the derivative of the others. tile, d: [rows, cols].
template <class T>
__device__ __forceinline__ void gradients(const float* tile, u32 cols, u32 first, float inv_t, float cap, GradientRows rows, T* d) {
    u32 row = blockIdx.y, at = blockIdx.x * GRADIENT_COLUMNS + threadIdx.x * 8;
    if (at >= cols) return;
    const float* logits = tile + (u64)row * cols + at;
    T* to = d + (u64)row * cols + at;
    float dlogp = inv_t * rows.dlogprobs[row], minus_dh = -inv_t * rows.dentropy[row], mass = rows.mass(row, inv_t);
    float lse = rows.lse[row], entropy = rows.entropy[row];
    // Without a gradient from the loss there is none here, whatever the row holds.
    bool none = dlogp == 0.0f && minus_dh == 0.0f && mass == 0.0f;
    u32 target = rows.targets[row] - first - at;
    bool wide = cols % 8 == 0 && ((u64)tile | (u64)d) % 16 == 0;
    float x[8];
    if (wide) {
        load8(logits, x);
    } else {
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] = at + i < cols ? logits[i] : 0.0f;
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        float lnp = x[i] * inv_t - lse;
        lnp = lnp < EXP_MIN ? EXP_MIN : lnp;
        float y = exp_f32(lnp) * fma(minus_dh, lnp + entropy, mass);
        y = i == target ? y + dlogp : y;
        if (cap > 0.0f) y = y * capped_slope(x[i], cap);
        x[i] = none ? 0.0f : y;
    }
    if (wide) {
        store8(to, x);
    } else {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (at + i < cols) to[i] = from_f32<T>(x[i]);
        }
    }
}

#define GRADIENTS(T, type)                                                                                            \
    extern "C" __global__ void __launch_bounds__(GRADIENT_COLUMNS / 8)                                                \
    gradients_##type(const float* __restrict__ tile, u32 cols, u32 first, float inv_t, float cap,                     \
                     const u32* __restrict__ targets, const float* __restrict__ lse,                                  \
                     const float* __restrict__ entropy, const float* __restrict__ dlogprobs,                          \
                     const float* __restrict__ dentropy, const float* __restrict__ rest,                              \
                     const float* __restrict__ d_listed, T* d) {                                                      \
        begin();                                                                                                      \
        GradientRows rows{targets, lse, entropy, dlogprobs, dentropy, rest, d_listed};                                \
        gradients(tile, cols, first, inv_t, cap, rows, d);                                                            \
    }
GRADIENTS(float, f32)
GRADIENTS(bf16, bf16)
