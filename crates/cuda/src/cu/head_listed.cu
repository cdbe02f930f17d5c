// Several tokens of a head row: the most likely ones, log-probabilities of given ones, and their part of the gradient.
//
// Legend: K tokens a row, at most LISTED_MAX. A list holds scaled logits in descending order, of equals the lower ids
// first. Tiles come in ascending order, so the result does not depend on their width.

#define LISTED_MAX 1024
#define LIST_THREADS 256
/// Places of a list with the candidates that are not sorted yet: a power of two.
#define LIST_PLACES 2048

/// A logit and its column as one number that grows with the logit and falls with the column; never 0. NaN counts as
/// minus infinity.
__device__ __forceinline__ u64 list_key(float x, u32 column) {
    // Minus 0 is 0.
    u32 bits = x == x ? __float_as_uint(x + 0.0f) : 0xff800000u;
    u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)ordered << 32 | ~column;
}

__device__ __forceinline__ float key_logit(u64 key) {
    u32 ordered = (u32)(key >> 32);
    return as_f32(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

/// Sorts a list in descending order; places from `count` on are emptied first. All threads of the block call it.
__device__ __forceinline__ void sort_list(u64* list, u32 count) {
    for (u32 i = count + threadIdx.x; i < LIST_PLACES; i += LIST_THREADS) list[i] = 0;
    __syncthreads();
    for (u32 size = 2; size <= LIST_PLACES; size *= 2) {
        for (u32 stride = size / 2; stride > 0; stride /= 2) {
            for (u32 i = threadIdx.x; i < LIST_PLACES / 2; i += LIST_THREADS) {
                u32 low = i / stride * stride * 2 + i % stride, high = low + stride;
                u64 a = list[low], b = list[high];
                if ((a < b) == ((low & size) == 0)) {
                    list[low] = b;
                    list[high] = a;
                }
            }
            __syncthreads();
        }
    }
}

/// Merges a tile into the list of each row, a block a row. tile: [rows, cols] f32, unscaled, columns from `first` on;
/// ids, best: [rows, k], of which the first tile reads nothing. The last tile writes log-probabilities for logits.
extern "C" __global__ void __launch_bounds__(LIST_THREADS)
top_of_tile(const float* __restrict__ tile, u32 cols, u32 first, float inv_t, u32 k, u32 is_last,
            const float* __restrict__ lse, u32* ids, float* best) {
    begin();
    __shared__ u64 list[LIST_PLACES];
    __shared__ u32 count;
    const float* logits = tile + (u64)blockIdx.x * cols;
    u32* my_ids = ids + (u64)blockIdx.x * k;
    float* mine = best + (u64)blockIdx.x * k;
    for (u32 i = threadIdx.x; i < k; i += LIST_THREADS) list[i] = first == 0 ? 0 : list_key(mine[i], my_ids[i]);
    if (threadIdx.x == 0) count = k;
    __syncthreads();
    for (u32 start = 0; start < cols; start += LIST_THREADS) {
        u32 at = start + threadIdx.x;
        if (at < cols) {
            u64 key = list_key(logits[at] * inv_t, first + at);
            // The order of candidates is that of threads in time; sorting removes it.
            if (key > list[k - 1]) list[atomicAdd(&count, 1)] = key;
        }
        __syncthreads();
        u32 held = count;
        __syncthreads();
        if (held + LIST_THREADS > LIST_PLACES) {
            sort_list(list, held);
            if (threadIdx.x == 0) count = k;
            __syncthreads();
        }
    }
    u32 held = count;
    __syncthreads();
    if (held > k) sort_list(list, held);
    for (u32 i = threadIdx.x; i < k; i += LIST_THREADS) {
        u64 key = list[i];
        float x = key_logit(key);
        my_ids[i] = ~(u32)key;
        mine[i] = is_last ? (float)((double)x - (double)lse[blockIdx.x]) : x;
    }
}

/// Warps of a block of `logprobs_of`.
#define LISTED_WARPS 8
/// The logit of a token without probability, after its factor.
#define NO_MASS -1e30f

/// Log-probabilities of ids [rows, k], a warp each. x: [rows, h]; w: [vocab, h].
template <class T>
__device__ __forceinline__ void logprobs_of(const T* __restrict__ x, const T* __restrict__ w, u32 h, u32 vocab, float inv_t,
                                            float cap, u32 suppressed, u32 count, u32 k, const float* __restrict__ lse, const u32* __restrict__ ids,
                                            float* logprobs, const RowsOwn& own) {
    u32 row = blockIdx.y, j = blockIdx.x * LISTED_WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (j >= k) return;
    u64 at = (u64)row * k + j;
    u32 id = ids[at];
    // An id beyond the vocabulary is reported by --checked, and is NaN without it.
    if (!index_ok(BAD_TOKEN, id, vocab) || id >= vocab) {
        if (lane == 0) logprobs[at] = as_f32(0x7fc00000u);
        return;
    }
    const T *a = x + (u64)row * h, *b = w + (u64)id * h;
    float sum = 0.0f;
    for (u32 i = lane; i < h; i += WARP) sum = fma(to_f32(a[i]), to_f32(b[i]), sum);
    sum = warp_sum(sum);
    if (lane == 0) {
        float bent = cap > 0.0f ? capped(sum, cap) : sum;
        if (own.per_row > 0) bent = bent + own.bias(row, id);
        bool none = id - suppressed < count || (own.masks != 0 && is_masked(own.masks, own.words, own.of_row[row], id));
        float logit = none ? NO_MASS : bent * inv_t;
        logprobs[at] = (float)((double)logit - (double)lse[row]);
    }
}

/// Gradients by the logits of listed tokens, in place of those that all others have. d: [rows, cols], the gradients of
/// a tile; rows without a derivative by their number keep what they have.
template <class T>
__device__ __forceinline__ void put_listed(GradientRows rows, const u32* __restrict__ ids, const float* __restrict__ logprobs,
                                           const float* __restrict__ slopes, u32 num_rows, u32 k, u32 cols, u32 first,
                                           float inv_t, float cap, T* d) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (u64)num_rows * k) return;
    u32 row = (u32)(at / k), column = ids[at] - first; // Below `first` it wraps around.
    float by = rows.d_listed[row];
    if (column >= cols || by == 0.0f) return;
    float logprob = logprobs[at], p = exp_f32(logprob);
    float delta = ids[at] == rows.targets[row] ? 1.0f : 0.0f;
    float policy = rows.dlogprobs[row] * (delta - p) - rows.dentropy[row] * p * (logprob + rows.entropy[row]);
    float y = inv_t * (by * slopes[at] + policy);
    if (cap > 0.0f) y = y * capped_slope((logprob + rows.lse[row]) / inv_t, cap);
    d[(u64)row * cols + column] = from_f32<T>(y);
}

#define LISTED(T, type)                                                                                               \
    extern "C" __global__ void __launch_bounds__(LISTED_WARPS * WARP)                                                 \
    logprobs_of_##type(const T* __restrict__ x, const T* __restrict__ w, u32 h, u32 vocab, float inv_t, float cap,    \
                       u32 suppressed, u32 count, u32 k, const float* __restrict__ lse, const u32* __restrict__ ids,     \
                       float* logprobs, const u32* masks, u32 words, const u32* of_row, const u32* bias_ids,          \
                       const float* biases, u32 per_row) {                                                            \
        begin();                                                                                                      \
        const RowsOwn own = {masks, words, of_row, bias_ids, biases, per_row};                                        \
        logprobs_of(x, w, h, vocab, inv_t, cap, suppressed, count, k, lse, ids, logprobs, own);                       \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                 \
    put_listed_##type(const u32* __restrict__ targets, const float* __restrict__ lse,                                 \
                      const float* __restrict__ entropy, const float* __restrict__ dlogprobs,                         \
                      const float* __restrict__ dentropy, const float* __restrict__ rest,                             \
                      const float* __restrict__ d_listed, const u32* __restrict__ ids,                                \
                      const float* __restrict__ logprobs, const float* __restrict__ slopes, u32 num_rows, u32 k,      \
                      u32 cols, u32 first, float inv_t, float cap, T* d) {                                            \
        begin();                                                                                                      \
        GradientRows rows{targets, lse, entropy, dlogprobs, dentropy, rest, d_listed};                                \
        put_listed(rows, ids, logprobs, slopes, num_rows, k, cols, first, inv_t, cap, d);                             \
    }
LISTED(float, f32)
LISTED(bf16, bf16)
