// Shared by the kernels of the head: a part's statistics, and inputs of rows.

/// Below it e^x counts as 0 in products, because -infinity times 0 would be NaN.
#define EXP_MIN -87.3f
#define MINUS_INFINITY as_f32(0xff800000u)

/// Natural logarithm of a positive, normal number, as `plimsoll_base::math::ln`: its bits are ours.
__device__ __forceinline__ double ln_f64(double x) {
    u64 bits = (u64)__double_as_longlong(x);
    int k = (int)(bits >> 52) - 1023;
    double m = __longlong_as_double((long long)((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull)); // [1, 2)
    if (m > 1.4142135623730951) {
        m *= 0.5;
        k += 1;
    }
    // ln m = 2 artanh(s), s = (m - 1)/(m + 1), |s| <= 0.1716; terms to s^23 leave 1e-19.
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, p = 0.0;
#pragma unroll
    for (int n = 11; n >= 0; n--) p = p * s2 + 1.0 / (2 * n + 1);
    return k * 6.931471803691238e-1 + (2.0 * s * p + k * 1.9082149292705877e-10);
}

__device__ __forceinline__ double warp_sum_f64(double x) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x = x + __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

/// The mask of a row that has none.
#define NO_MASK 0xffffffffu

/// True if a row's mask leaves a token out. masks: [D, words].
__device__ __forceinline__ bool is_masked(const u32* masks, u32 words, u32 mask, u32 token) {
    return mask != NO_MASK && !(masks[(u64)mask * words + token / 32] >> token % 32 & 1);
}

/// What single rows have of their own: masks [D, words], each row's mask [rows]; tokens, ascending, and what is added to
/// their logits before the factor [rows, per_row]. `masks` is 0 without masks, `per_row` without biases.
struct RowsOwn {
    const u32* masks;
    u32 words;
    const u32 *of_row, *ids;
    const float* values;
    u32 per_row;

    /// The first of a row's biases whose token is `token` or above, counted over all rows.
    __device__ __forceinline__ u64 bias_from(u32 row, u32 token) const {
        const u32* mine = ids + (u64)row * per_row;
        u32 low = 0, high = per_row;
        while (low < high) {
            u32 middle = (low + high) / 2;
            if (mine[middle] < token) low = middle + 1;
            else high = middle;
        }
        return (u64)row * per_row + low;
    }

    /// What is added to the logit of a token.
    __device__ __forceinline__ float bias(u32 row, u32 token) const {
        u64 at = bias_from(row, token);
        return at < (u64)(row + 1) * per_row && ids[at] == token ? values[at] : 0.0f;
    }
};

/// Statistics of a part of a row. Logits are scaled.
struct PartStats {
    float max;
    float sum;      // of exp(x - max); NaN if any logit is NaN or plus infinity
    float weighted; // sum of (x - max) exp(x - max)
    float logit;    // of the target, if it is in this part, or of `token`
    u32 token;      // drawn among the part's
};

/// The four numbers of a row's draw: `keys` [rows, KEY_WORDS].
__device__ __forceinline__ uint4 row_numbers(const u32* keys, u32 row) {
    const u32* key = keys + (u64)row * KEY_WORDS;
    return philox((u64)key[4] << 32 | key[3], STREAM_SAMPLER, (u64)key[1] << 32 | key[0], key[2]);
}

/// Inputs of the backward pass for each row, [rows] each.
struct GradientRows {
    const u32* targets;
    const float *lse, *entropy, *dlogprobs, *dentropy;
    /// With listed tokens: the derivative of the row's number by the logit of any other, divided by its probability,
    /// and the loss's by the number. Else 0.
    const float *rest, *d_listed;

    /// The derivative by a logit that is neither the target's nor listed, divided by inv_t and by its probability, but
    /// for what the entropy adds.
    __device__ __forceinline__ float mass(u32 row, float inv_t) const {
        float by_target = -(inv_t * dlogprobs[row]);
        if (d_listed == 0 || d_listed[row] == 0.0f) return by_target;
        return by_target + inv_t * (d_listed[row] * rest[row]);
    }
};
