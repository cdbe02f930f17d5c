// The divergence of a head's rows from a teacher's over the whole vocabulary, and its gradient by the student's logits.
//
// Legend: x the student's and y the teacher's unscaled logits of a tile, p and q the probabilities of a token. Terms are
// computed in f64: where the two heads agree, those of neighbours cancel.

#define DIVERGENCE_THREADS 256
#define REVERSE 0
#define FORWARD 1

/// e^x as `plimsoll_base::math::exp`, for x up to 709; 0 below -700.
__device__ __forceinline__ double exp_f64(double x) {
    if (!(x >= -700.0)) return x != x ? x : 0.0;
    double k = rint(x * 1.4426950408889634), r = (x - k * 6.931471803691238e-1) - k * 1.9082149292705877e-10;
    // Taylor to r^14: the next term is below 0.3466^15 / 15! = 1e-19.
    double p = 1.0;
#pragma unroll
    for (int n = 14; n >= 1; n--) p = 1.0 + p * r * (1.0 / n);
    return p * __longlong_as_double((long long)((int)k + 1023) << 52);
}

/// One token of a row.
struct Terms {
    double lp, lq, p, q;

    __device__ __forceinline__ Terms(float x, float lse, float y, float teacher_lse) {
        lp = (double)x - (double)lse;
        lq = (double)y - (double)teacher_lse;
        p = exp_f64(lp);
        q = exp_f64(lq);
    }

    /// The token's part of the divergence, and p u; both are 0 where p is q, and finite where either is 0.
    __device__ __forceinline__ void parts(u32 how, double beta, double& value, double& pull) const {
        double d = lq - lp;
        if (how == REVERSE) {
            value = pull = -p * d;
        } else if (how == FORWARD) {
            value = q * d;
            pull = p - q;
        } else {
            // ln(m / p), by the larger of p and q.
            double m = d > 0.0 ? d + ln_f64(1.0 + (1.0 - beta) * (exp_f64(-d) - 1.0)) : ln_f64(1.0 + beta * (exp_f64(d) - 1.0));
            pull = -(1.0 - beta) * p * m;
            value = beta * q * (d - m) + pull;
        }
    }
};

/// Sum over a block of threads by a fixed tree; every thread gets it.
__device__ __forceinline__ double sum_of_block(double x, double* parts) {
    x = warp_sum_f64(x);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = x;
    __syncthreads();
    double sum = parts[0];
#pragma unroll
    for (int i = 1; i < DIVERGENCE_THREADS / WARP; i++) sum = sum + parts[i];
    return sum;
}

/// Adds a tile's part to the divergences and means of rows, a block a row; the first tile overwrites them. own, other:
/// [rows, cols] f32, unscaled logits. Thread i takes columns i, i + 256, ..: the order depends on the columns alone.
extern "C" __global__ void __launch_bounds__(DIVERGENCE_THREADS)
divergence_of_tile(const float* __restrict__ own, const float* __restrict__ other, u32 cols, u32 is_first, float inv_t,
                   float teacher_inv_t, u32 how, float beta, const float* __restrict__ lse,
                   const float* __restrict__ teacher_lse, float* values, float* means) {
    begin();
    __shared__ double parts[2][DIVERGENCE_THREADS / WARP];
    u32 row = blockIdx.x;
    const float *xs = own + (u64)row * cols, *ys = other + (u64)row * cols;
    double value = 0.0, mean = 0.0, of_value, of_mean;
    for (u32 i = threadIdx.x; i < cols; i += DIVERGENCE_THREADS) {
        Terms(xs[i] * inv_t, lse[row], ys[i] * teacher_inv_t, teacher_lse[row]).parts(how, beta, of_value, of_mean);
        value += of_value;
        mean += of_mean;
    }
    value = sum_of_block(value, parts[0]);
    mean = sum_of_block(mean, parts[1]);
    if (threadIdx.x != 0) return;
    values[row] = (float)(is_first ? value : (double)values[row] + value);
    means[row] = (float)(is_first ? mean : (double)means[row] + mean);
}

/// The numbers of each row with which its gradient follows from its logits, [rows] each.
struct WholeRows {
    const float *teacher_lse, *means, *d;
};

/// d[r, v] = inv_t (by slope + dlogp (delta - p) - dH p (ln p + H)), times the slope of the cap if `cap` is not 0, rounded
/// to T; `by` the derivative of the loss by the row's divergence, where 0 nothing of the teacher is read. own, other, d:
/// [rows, cols].
template <class T>
__device__ __forceinline__ void whole(const float* own, const float* other, u32 cols, u32 first, float inv_t, float cap,
                                      float teacher_inv_t, u32 how, double beta, GradientRows rows, WholeRows of,
                                      T* d) {
    u32 row = blockIdx.y, at = blockIdx.x * DIVERGENCE_THREADS + threadIdx.x;
    if (at >= cols) return;
    u64 place = (u64)row * cols + at;
    float by = of.d[row], dlogp = rows.dlogprobs[row], dh = rows.dentropy[row];
    if (by == 0.0f && dlogp == 0.0f && dh == 0.0f) {
        d[place] = from_f32<T>(0.0f);
        return;
    }
    float x = own[place], teacher_lse = by == 0.0f ? 0.0f : of.teacher_lse[row];
    Terms terms(x * inv_t, rows.lse[row], by == 0.0f ? 0.0f : other[place] * teacher_inv_t, teacher_lse);
    double delta = first + at == rows.targets[row] ? 1.0 : 0.0;
    double policy = (double)dlogp * (delta - terms.p) - (double)dh * terms.p * (terms.lp + (double)rows.entropy[row]);
    double learned = 0.0, value, pull;
    if (by != 0.0f) {
        terms.parts(how, beta, value, pull);
        learned = (double)by * (pull - terms.p * (double)of.means[row]);
    }
    float y = (float)((double)inv_t * (learned + policy));
    if (cap > 0.0f) y = y * capped_slope(x, cap);
    d[place] = from_f32<T>(y);
}

#define WHOLE(T, type)                                                                                                \
    extern "C" __global__ void __launch_bounds__(DIVERGENCE_THREADS)                                                  \
    whole_gradients_##type(const float* __restrict__ own, const float* __restrict__ other, u32 cols, u32 first,       \
                           float inv_t, float cap, float teacher_inv_t, u32 how, float beta,                          \
                           const u32* __restrict__ targets, const float* __restrict__ lse,                            \
                           const float* __restrict__ entropy, const float* __restrict__ dlogprobs,                    \
                           const float* __restrict__ dentropy, const float* __restrict__ teacher_lse,                 \
                           const float* __restrict__ means, const float* __restrict__ by, T* d) {                     \
        begin();                                                                                                      \
        GradientRows rows{targets, lse, entropy, dlogprobs, dentropy, 0, 0};                                          \
        whole(own, other, cols, first, inv_t, cap, teacher_inv_t, how, (double)beta, rows,                            \
              WholeRows{teacher_lse, means, by}, d);                                                                  \
    }
WHOLE(float, f32)
WHOLE(bf16, bf16)
