// The experts that compute each row, their order, and the gradient of routing.
//
// Legend: M rows, E experts, k chosen a row, P = M k pairs. A warp has a row, a lane PER neighbouring experts, so that
// lanes and their experts ascend. No order depends on atomics: those only count, or set bits. Kernels are made for each
// kind of score: a softmax over all experts, or a sigmoid of each.

/// Maximum experts.
#define EXPERTS_MAX 512
#define INFINITE as_f32(0x7f800000u)

/// A row's logits, and then its probabilities.
template <u32 PER> struct Row {
    float p[PER];

    static __device__ __forceinline__ u32 expert(u32 i) { return threadIdx.x % WARP * PER + i; }

    __device__ __forceinline__ Row() {}
    __device__ __forceinline__ Row(const float* __restrict__ logits, u32 experts) {
#pragma unroll
        for (u32 i = 0; i < PER; i++) p[i] = expert(i) < experts ? logits[expert(i)] : -INFINITE;
    }
    /// A lane's experts among the `count` largest logits, as bits; ties by the lower number, NaN before all numbers.
    __device__ __forceinline__ u32 choose(u32 experts, u32 count) const {
        const u32 lane = threadIdx.x % WARP;
        u32 keys[PER], chosen = 0;
        // Words ordered as the numbers; 0 is no expert, or one already chosen.
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            const u32 bits = as_u32(p[i] + 0.0f), key = bits >> 31 ? ~bits : bits | 0x80000000u;
            keys[i] = expert(i) < experts ? (p[i] == p[i] ? key : 0xffffffffu) : 0;
        }
        for (u32 j = 0; j < count; j++) {
            u32 best = 0;
#pragma unroll
            for (u32 i = 0; i < PER; i++) best = keys[i] > best ? keys[i] : best;
            const u32 top = __reduce_max_sync(ALL_LANES, best);
            const u32 first = __ffs(__ballot_sync(ALL_LANES, best == top)) - 1;
            bool searching = lane == first;
#pragma unroll
            for (u32 i = 0; i < PER; i++) {
                const bool here = searching && keys[i] == top;
                keys[i] = here ? 0 : keys[i];
                chosen |= (u32)here << i;
                searching = searching && !here;
            }
        }
        return chosen;
    }
    /// The sum of the two largest numbers of the `size` experts from `first` on; NaN before all numbers.
    __device__ __forceinline__ float best_two(u32 first, u32 size) const {
        u32 keys[PER];
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            const u32 bits = as_u32(p[i] + 0.0f), key = bits >> 31 ? ~bits : bits | 0x80000000u;
            keys[i] = expert(i) - first < size ? (p[i] == p[i] ? key : 0xffffffffu) : 0;
        }
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            u32 best = 0;
#pragma unroll
            for (u32 i = 0; i < PER; i++) best = keys[i] > best ? keys[i] : best;
            const u32 top = __reduce_max_sync(ALL_LANES, best);
            bool searching = threadIdx.x % WARP == __ffs(__ballot_sync(ALL_LANES, best == top)) - 1;
#pragma unroll
            for (u32 i = 0; i < PER; i++) {
                const bool here = searching && keys[i] == top;
                keys[i] = here ? 0 : keys[i];
                searching = searching && !here;
            }
            sum = sum + as_f32(top >> 31 ? top & 0x7fffffffu : ~top);
        }
        return sum;
    }
    /// Turns logits into probabilities; all are NaN if one is.
    __device__ __forceinline__ void soften(u32 experts) {
        float top = -INFINITE, sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < PER; i++) top = fmaxf(top, p[i]);
        top = warp_max(top);
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            p[i] = expert(i) < experts ? exp_f32(p[i] - top) : 0.0f;
            sum = sum + p[i];
        }
        sum = warp_sum(sum);
#pragma unroll
        for (u32 i = 0; i < PER; i++) p[i] = p[i] / sum;
    }
    /// The sum of chosen probabilities.
    __device__ __forceinline__ float sum_of(u32 chosen) const {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < PER; i++) sum = sum + (chosen >> i & 1 ? p[i] : 0.0f);
        return warp_sum(sum);
    }
};

/// Options of a router.
struct How {
    u32 experts, chosen, normalizes;
};

/// Writes a row's experts and the weights that `weight` has for a lane's, and calls `note` with each expert.
template <u32 PER, class Weight, class Note>
__device__ __forceinline__ void write_row(u32 chosen, const How& how, u32 row, u32* __restrict__ experts, float* __restrict__ weights,
                                          const Weight& weight, const Note& note) {
    const u32 lane = threadIdx.x % WARP, count = __popc(chosen);
    u32 after = count;
#pragma unroll
    for (u32 step = 1; step < WARP; step <<= 1) {
        const u32 below = __shfl_up_sync(ALL_LANES, after, step);
        if (lane >= step) after += below;
    }
    u64 at = (u64)row * how.chosen + after - count;
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        if (!(chosen >> i & 1)) continue;
        experts[at] = Row<PER>::expert(i);
        weights[at] = weight(i);
        note(Row<PER>::expert(i));
        at++;
    }
}

/// Scores that are a softmax over all experts.
struct Softmax {
    template <u32 PER, class Note>
    __device__ __forceinline__ void route(const float* __restrict__ logits, const How& how, u32 row, u32* __restrict__ experts,
                                          float* __restrict__ weights, const Note& note) const {
        Row<PER> of(logits + (u64)row * how.experts, how.experts);
        const u32 chosen = of.choose(how.experts, how.chosen);
        of.soften(how.experts);
        const float sum = how.normalizes ? of.sum_of(chosen) : 1.0f;
        const auto weight = [&](u32 i) { return how.normalizes ? of.p[i] / sum : of.p[i]; };
        write_row<PER>(chosen, how, row, experts, weights, weight, note);
    }
    /// Turns logits into scores.
    template <u32 PER> __device__ __forceinline__ void score(Row<PER>& row, u32 experts) const { row.soften(experts); }
    /// The derivatives `d` by the logits from `slopes`, those by the weights of the lane's `chosen` experts; turns scores
    /// into probabilities.
    template <u32 PER>
    __device__ __forceinline__ void differentiate(Row<PER>& probabilities, const float*, const How& how, u32 chosen, const float* slopes,
                                                  float* d) const {
        // A row's weights, or probabilities, through the softmax that they are: w (dw - sum of w dw). Divided weights are
        // a softmax over the chosen experts alone: by the logits of the others their derivatives are 0.
        const float sum = how.normalizes ? probabilities.sum_of(chosen) : 1.0f;
        float dot = 0.0f;
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            d[i] = probabilities.p[i] / sum;
            dot = fma(slopes[i], d[i], dot);
        }
        dot = warp_sum(dot);
#pragma unroll
        for (u32 i = 0; i < PER; i++) d[i] = how.normalizes && !(chosen >> i & 1) ? 0.0f : d[i] * (slopes[i] - dot);
    }
    /// The derivative of the logarithm of a score by its logit, without that of the row's sum.
    template <u32 PER> __device__ __forceinline__ float grows(const float*, u32, u32) const { return 1.0f; }
};

/// Added to a sum of sigmoids before weights are divided by it.
#define SIGMOID_SUM_MIN 1e-20f

/// Scores that are the sigmoid of each logit, with corrections for the choice: `terms` [3, E], as sums of three.
template <class T> struct Sigmoid {
    const T* terms;
    float factor;
    u32 groups, groups_chosen;

    template <u32 PER, class Note>
    __device__ __forceinline__ void route(const float* __restrict__ logits, const How& how, u32 row, u32* __restrict__ experts,
                                          float* __restrict__ weights, const Note& note) const {
        Row<PER> scores(logits + (u64)row * how.experts, how.experts), sums;
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            const u32 expert = Row<PER>::expert(i);
            float correction = 0.0f;
            if (expert < how.experts) {
                const T* own = terms + expert;
                correction = to_f32(own[0]) + to_f32(own[how.experts]) + to_f32(own[2 * how.experts]);
            }
            scores.p[i] = sigmoid<float>(scores.p[i]);
            sums.p[i] = scores.p[i] + correction;
        }
        if (groups != groups_chosen) leave_groups_out<PER>(sums, how.experts / groups);
        const u32 chosen = sums.choose(how.experts, how.chosen);
        const float sum = how.normalizes ? scores.sum_of(chosen) + SIGMOID_SUM_MIN : 1.0f;
        write_row<PER>(chosen, how, row, experts, weights, [&](u32 i) { return scores.p[i] / sum * factor; }, note);
    }
    /// Replaces all sums but those of the groups whose two best have the largest sums; a lane has a group.
    template <u32 PER> __device__ __forceinline__ void leave_groups_out(Row<PER>& sums, u32 size) const {
        const u32 lane = threadIdx.x % WARP;
        Row<1> of_groups;
        of_groups.p[0] = 0.0f;
        for (u32 group = 0; group < groups; group++) {
            const float best = sums.best_two(group * size, size);
            of_groups.p[0] = lane == group ? best : of_groups.p[0];
        }
        const u32 kept = __ballot_sync(ALL_LANES, of_groups.choose(groups, groups_chosen) & 1);
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            const u32 group = Row<PER>::expert(i) / size;
            sums.p[i] = group < groups && kept >> group & 1 ? sums.p[i] : -INFINITE;
        }
    }
    template <u32 PER> __device__ __forceinline__ void score(Row<PER>& row, u32 experts) const {
#pragma unroll
        for (u32 i = 0; i < PER; i++) row.p[i] = Row<PER>::expert(i) < experts ? sigmoid<float>(row.p[i]) : 0.0f;
    }
    template <u32 PER>
    __device__ __forceinline__ void differentiate(Row<PER>& scores, const float* __restrict__ logits, const How& how, u32 chosen,
                                                  const float* slopes, float* d) const {
        const float sum = how.normalizes ? scores.sum_of(chosen) + SIGMOID_SUM_MIN : 1.0f;
        float dot = 0.0f;
#pragma unroll
        for (u32 i = 0; i < PER; i++) dot = how.normalizes ? fma(slopes[i], scores.p[i] / sum, dot) : 0.0f;
        dot = warp_sum(dot);
        const float by = factor / sum;
        float all = 0.0f;
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            const float own = chosen >> i & 1 ? by * (slopes[i] - dot) * scores.p[i] : 0.0f;
            d[i] = own * grows<PER>(logits, how.experts, i);
            all = all + scores.p[i];
        }
        all = warp_sum(all) + SIGMOID_SUM_MIN;
#pragma unroll
        for (u32 i = 0; i < PER; i++) scores.p[i] = scores.p[i] / all;
    }
    template <u32 PER> __device__ __forceinline__ float grows(const float* __restrict__ logits, u32 experts, u32 i) const {
        // 1 - score without cancellation: the sigmoid of the other sign.
        const u32 expert = Row<PER>::expert(i);
        return expert < experts ? sigmoid<float>(-logits[expert]) : 0.0f;
    }
};

/// Many rows, of which a warp has one; then `route_pairs`.
template <u32 PER, class Router>
__device__ __forceinline__ void route_rows(const float* logits, const How& how, const Router& router, u32 m, u32* experts, float* weights) {
    const u32 row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row < m) router.template route<PER>(logits, how, row, experts, weights, [](u32) {});
}

/// The order of pairs: a block has an expert, a warp a run of rows, read twice. A row has an expert at most once.
extern "C" __global__ void __launch_bounds__(512)
route_pairs(const u32* __restrict__ experts, u32 m, u32 chosen, u32* pairs, u32* places, u32* starts) {
    begin();
    __shared__ u32 counts[16], earlier[16];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP, expert = blockIdx.x;
    const u32 run = tiles_of(tiles_of(m, WARP), warps) * WARP, begin_row = warp * run;
    const u32 end_row = begin_row + run < m ? begin_row + run : m;
    // The pair of the lane's row, or none, and how many of its experts have lower numbers.
    const u32 none = 0xffffffffu;
    const auto find = [&](u32 row, u32& less) {
        u32 found = none;
        if (row >= end_row) return found;
        const u32* own = experts + (u64)row * chosen;
#pragma unroll 8
        for (u32 j = 0; j < chosen; j++) {
            less += own[j] < expert;
            if (own[j] == expert) found = row * chosen + j;
        }
        return found;
    };
    u32 count = 0, less = 0;
    for (u32 row = begin_row; row < end_row; row += WARP) count += __popc(__ballot_sync(ALL_LANES, find(row + lane, less) != none));
#pragma unroll
    for (u32 step = 16; step > 0; step >>= 1) less += __shfl_xor_sync(ALL_LANES, less, step);
    if (lane == 0) counts[warp] = count, earlier[warp] = less;
    __syncthreads();
    u32 start = 0, before = 0;
    for (u32 i = 0; i < warps; i++) {
        start += earlier[i];
        before += i < warp ? counts[i] : 0;
    }
    if (threadIdx.x == 0) {
        starts[expert] = start;
        if (expert + 1 == gridDim.x) starts[expert + 1] = m * chosen;
    }
    u32 at = start + before, unused = 0;
    for (u32 row = begin_row; row < end_row; row += WARP) {
        const u32 pair = find(row + lane, unused), here = __ballot_sync(ALL_LANES, pair != none);
        if (pair != none) {
            const u32 place = at + __popc(here & ((1u << lane) - 1));
            pairs[place] = pair;
            places[pair] = place;
        }
        at += __popc(here);
    }
}

/// Maximum rows that one block routes: a word of bits for each 32.
#define FEW_ROWS 64
#define FEW_WORDS (FEW_ROWS / 32)

/// Routes few rows in one launch.
template <u32 PER, class Router>
__device__ __forceinline__ void route_few(const float* logits, const How& how, const Router& router, u32 m, u32* experts, float* weights,
                                          u32* pairs, u32* places, u32* starts) {
    __shared__ u32 rows_of[EXPERTS_MAX][FEW_WORDS], first_of[EXPERTS_MAX];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (u32 i = threadIdx.x; i < EXPERTS_MAX * FEW_WORDS; i += blockDim.x) rows_of[i / FEW_WORDS][i % FEW_WORDS] = 0;
    __syncthreads();
    for (u32 row = warp; row < m; row += blockDim.x / WARP) {
        const auto note = [&](u32 expert) { atomicOr(&rows_of[expert][row / 32], 1u << row % 32); };
        router.template route<PER>(logits, how, row, experts, weights, note);
    }
    __syncthreads();
    const auto count = [&](u32 expert, u32 below) {
        u32 sum = 0;
#pragma unroll
        for (u32 word = 0; word < FEW_WORDS; word++) {
            const u32 bits = below >= word * 32 + 32 ? ALL_LANES : below <= word * 32 ? 0 : (1u << (below - word * 32)) - 1;
            sum += __popc(rows_of[expert][word] & bits);
        }
        return sum;
    };
    if (warp == 0) {
        u32 own = 0;
#pragma unroll
        for (u32 i = 0; i < PER; i++) own += count(lane * PER + i, FEW_ROWS);
        u32 after = own;
#pragma unroll
        for (u32 step = 1; step < WARP; step <<= 1) {
            const u32 below = __shfl_up_sync(ALL_LANES, after, step);
            if (lane >= step) after += below;
        }
        u32 at = after - own;
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            const u32 expert = lane * PER + i;
            first_of[expert] = at;
            if (expert <= how.experts) starts[expert] = at;
            at += count(expert, FEW_ROWS);
        }
        // If every lane has all its experts, none has the end.
        if (lane == WARP - 1 && how.experts == WARP * PER) starts[how.experts] = at;
    }
    __syncthreads();
    for (u32 pair = threadIdx.x; pair < m * how.chosen; pair += blockDim.x) {
        const u32 expert = experts[pair], place = first_of[expert] + count(expert, pair / how.chosen);
        pairs[place] = pair;
        places[pair] = place;
    }
}

#define ROUTE(PER)                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(128)                                                                              \
    route_rows_##PER(const float* logits, u32 e, u32 chosen, u32 normalizes, u32 m, u32* experts, float* weights) {                \
        begin();                                                                                                                   \
        route_rows<PER>(logits, How{e, chosen, normalizes}, Softmax{}, m, experts, weights);                                       \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(1024)                                                                             \
    route_few_##PER(const float* logits, u32 e, u32 chosen, u32 normalizes, u32 m, u32* experts, float* weights, u32* pairs,       \
                    u32* places, u32* starts) {                                                                                    \
        begin();                                                                                                                   \
        route_few<PER>(logits, How{e, chosen, normalizes}, Softmax{}, m, experts, weights, pairs, places, starts);                 \
    }
ROUTE(4)
ROUTE(16)

#define ROUTE_SIGMOID(PER, T)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(128)                                                                              \
    route_sigmoid_rows_##PER##_##T(const float* logits, u32 e, u32 chosen, u32 normalizes, u32 m, const T* terms, float factor,    \
                                   u32 groups, u32 groups_chosen, u32* experts, float* weights) {                                  \
        begin();                                                                                                                   \
        const Sigmoid<T> router{terms, factor, groups, groups_chosen};                                                             \
        route_rows<PER>(logits, How{e, chosen, normalizes}, router, m, experts, weights);                                          \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(1024)                                                                             \
    route_sigmoid_few_##PER##_##T(const float* logits, u32 e, u32 chosen, u32 normalizes, u32 m, const T* terms, float factor,     \
                                  u32 groups, u32 groups_chosen, u32* experts, float* weights, u32* pairs, u32* places,            \
                                  u32* starts) {                                                                                   \
        begin();                                                                                                                   \
        const Sigmoid<T> router{terms, factor, groups, groups_chosen};                                                             \
        route_few<PER>(logits, How{e, chosen, normalizes}, router, m, experts, weights, pairs, places, starts);                    \
    }
ROUTE_SIGMOID(4, float)
ROUTE_SIGMOID(4, bf16)
ROUTE_SIGMOID(16, float)
ROUTE_SIGMOID(16, bf16)

// ---- the gradient ---------------------------------------------------------------------------------------------------

struct Routed {
    const float *logits, *d_weights;
    const u32 *experts, *places;
};

/// A row's derivatives by its logits. `shares`, if any: `factor` times an expert's is added to its probability's
/// derivative; `balance` gets `times` the sum of probabilities times shares.
template <u32 PER, class T, class Router>
__device__ __forceinline__ void route_backward_row(const Routed& of, const How& how, const Router& router, u32 row, const float* shares, float factor,
                                                   float times, float* balance, T* __restrict__ d_logits) {
    const u32 lane = threadIdx.x % WARP;
    const float* logits = of.logits + (u64)row * how.experts;
    Row<PER> probabilities(logits, how.experts);
    router.score(probabilities, how.experts);
    const u64 first = (u64)row * how.chosen;
    u32 own_expert = 0;
    float own_slope = 0.0f;
    if (lane < how.chosen) {
        own_expert = of.experts[first + lane];
        own_slope = of.d_weights[of.places[first + lane]];
    }
    float slopes[PER] = {};
    u32 chosen = 0;
    for (u32 j = 0; j < how.chosen; j++) {
        const u32 expert = __shfl_sync(ALL_LANES, own_expert, j);
        const float slope = __shfl_sync(ALL_LANES, own_slope, j);
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            if (probabilities.expert(i) != expert) continue;
            slopes[i] = slope;
            chosen |= 1u << i;
        }
    }
    float d[PER];
    router.differentiate(probabilities, logits, how, chosen, slopes, d);
    if (balance) {
        float mean = 0.0f;
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            if (probabilities.expert(i) < how.experts) mean = fma(probabilities.p[i], shares[probabilities.expert(i)], mean);
        }
        mean = warp_sum(mean);
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            if (probabilities.expert(i) >= how.experts) continue;
            const float grows = router.template grows<PER>(logits, how.experts, i);
            d[i] = fma(factor * probabilities.p[i] * grows, shares[probabilities.expert(i)] - mean, d[i]);
        }
        if (lane == 0) balance[row] = times * mean;
    }
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        if (probabilities.expert(i) >= how.experts) continue;
        d_logits[(u64)row * how.experts + probabilities.expert(i)] = from_f32<T>(d[i]);
    }
}

/// A warp has a row.
template <u32 PER, class T, class Router>
__device__ __forceinline__ void route_backward(const Routed& of, const How& how, const Router& router, u32 m, T* d_logits) {
    const u32 row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row < m) route_backward_row<PER>(of, how, router, row, nullptr, 0.0f, 0.0f, nullptr, d_logits);
}

/// Routing with the load-balancing loss: each block counts all choices of segment blockIdx.x; y splits its rows.
template <u32 PER, class T, class Router>
__device__ __forceinline__ void route_backward_balanced(const Routed& of, const How& how, const Router& router, u32 m,
                                                        const u32* __restrict__ segments, float factor, float* balance, T* d_logits) {
    __shared__ u32 counts[EXPERTS_MAX];
    __shared__ float shares[EXPERTS_MAX];
    __shared__ u32 children;
    const u32* segment = segments + blockIdx.x * SEGMENT_FIELDS;
    const u32 first = segment[0], rows = segment[1];
    if (rows == 0 || !index_ok(BAD_SEGMENT, first + rows, m + 1)) return;
    for (u32 i = threadIdx.x; i < how.experts; i += blockDim.x) counts[i] = 0;
    if (threadIdx.x == 0) children = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
        if (segments[i * SEGMENT_FIELDS + SEGMENT_FIELDS - 1] == first) atomicAdd(&children, 1u);
    }
    const u32* own = of.experts + (u64)first * how.chosen;
    for (u32 i = threadIdx.x; i < rows * how.chosen; i += blockDim.x) atomicAdd(&counts[own[i]], 1u);
    __syncthreads();
    for (u32 i = threadIdx.x; i < how.experts; i += blockDim.x) shares[i] = (float)counts[i] / (float)rows;
    __syncthreads();
    // The rows of a parent are in as many sequences as it has children.
    const float times = (float)(children > 1 ? children : 1);
    factor = factor * times;
    const u32 warps = blockDim.x / WARP;
    for (u32 row = blockIdx.y * warps + threadIdx.x / WARP; row < rows; row += gridDim.y * warps) {
        route_backward_row<PER>(of, how, router, first + row, shares, factor, times, balance, d_logits);
    }
}

#define ROUTE_BACKWARD(PER, T)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    route_backward_##PER##_##T(const float* logits, const float* d_weights, const u32* experts, const u32* places, u32 e,          \
                               u32 chosen, u32 normalizes, u32 m, T* d_logits) {                                                   \
        begin();                                                                                                                   \
        const Routed of{logits, d_weights, experts, places};                                                                       \
        route_backward<PER>(of, How{e, chosen, normalizes}, Softmax{}, m, d_logits);                                               \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    route_backward_balanced_##PER##_##T(const float* logits, const float* d_weights, const u32* experts, const u32* places, u32 e, \
                                        u32 chosen, u32 normalizes, u32 m, const u32* segments, float factor, float* balance,      \
                                        T* d_logits) {                                                                             \
        begin();                                                                                                                   \
        const Routed of{logits, d_weights, experts, places};                                                                       \
        route_backward_balanced<PER>(of, How{e, chosen, normalizes}, Softmax{}, m, segments, factor, balance, d_logits);           \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    route_sigmoid_backward_##PER##_##T(const float* logits, const float* d_weights, const u32* experts, const u32* places, u32 e,  \
                                       u32 chosen, u32 normalizes, u32 m, float scale, T* d_logits) {                              \
        begin();                                                                                                                   \
        const Routed of{logits, d_weights, experts, places};                                                                       \
        route_backward<PER>(of, How{e, chosen, normalizes}, Sigmoid<T>{nullptr, scale, 1, 1}, m, d_logits);                        \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    route_sigmoid_backward_balanced_##PER##_##T(const float* logits, const float* d_weights, const u32* experts,                   \
                                                const u32* places, u32 e, u32 chosen, u32 normalizes, u32 m, float scale,          \
                                                const u32* segments, float factor, float* balance, T* d_logits) {                  \
        begin();                                                                                                                   \
        const Routed of{logits, d_weights, experts, places};                                                                       \
        const Sigmoid<T> router{nullptr, scale, 1, 1};                                                                             \
        route_backward_balanced<PER>(of, How{e, chosen, normalizes}, router, m, segments, factor, balance, d_logits);              \
    }
ROUTE_BACKWARD(4, float)
ROUTE_BACKWARD(4, bf16)
ROUTE_BACKWARD(16, float)
ROUTE_BACKWARD(16, bf16)
