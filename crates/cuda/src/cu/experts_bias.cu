// Biases of experts' products, and their gradients. Legend: as in experts.cuh; n outputs of an expert.

/// out[p] += bias of the pair's expert, times the pair's weight where it `weighs`, rounded once. A thread has eight
/// elements (`wide`), or one.
template <class O, class B>
__device__ __forceinline__ void add_bias(O* out, const B* __restrict__ bias, const u32* __restrict__ pairs, const u32* __restrict__ experts,
                                         const float* __restrict__ weights, u32 n, u32 items, u32 wide, u32 weighs) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const u32 width = wide ? n / 8 : n, p = i / width, c = i - p * width, pair = pairs[p];
    const float weight = weighs ? weights[pair] : 1.0f;
    const B* own = bias + (u64)experts[pair] * n;
    O* to = out + (u64)p * n;
    if (!wide) {
        to[c] = from_f32<O>(fma(weight, to_f32(own[c]), to_f32(to[c])));
        return;
    }
    float x[8], y[8];
    load8(own + c * 8, x);
    load8(to + c * 8, y);
#pragma unroll
    for (u32 j = 0; j < 8; j++) y[j] = fma(weight, x[j], y[j]);
    store8(to + c * 8, y);
}

/// grad = the sum over an expert's pairs of dy, times the pair's weight where it `weighs`, or grad +=. A thread has a
/// column of an expert, which blockIdx.y counts: one chain over its pairs. `chosen` as in `row_of`.
template <class T, class G>
__device__ __forceinline__ void gradient(const T* __restrict__ dy, u32 chosen, const u32* __restrict__ pairs, const u32* __restrict__ starts,
                                         const float* __restrict__ weights, G* grad, u32 n, u32 weighs, u32 add) {
    const u32 col = blockIdx.x * blockDim.x + threadIdx.x, first = starts[blockIdx.y], end = starts[blockIdx.y + 1];
    if (col >= n) return;
    float sum = 0.0f;
#pragma unroll 8
    for (u32 place = first; place < end; place++) {
        const float weight = weighs ? weights[pairs[place]] : 1.0f;
        sum = fma(weight, to_f32(dy[(u64)row_of(pairs, place, chosen) * n + col]), sum);
    }
    G* to = grad + (u64)blockIdx.y * n + col;
    *to = from_f32<G>((add ? to_f32(*to) : 0.0f) + sum);
}

/// d_weights[p] += dy of the pair's row times the bias of its expert. A warp has a pair.
template <class T>
__device__ __forceinline__ void weights_gradient(const T* __restrict__ dy, u32 chosen, const T* __restrict__ bias,
                                                 const u32* __restrict__ pairs, const u32* __restrict__ experts, float* d_weights, u32 n,
                                                 u32 count) {
    const u32 p = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (p >= count) return;
    const T *row = dy + (u64)row_of(pairs, p, chosen) * n, *own = bias + (u64)experts[pairs[p]] * n;
    float sum = 0.0f;
#pragma unroll 4
    for (u32 c = lane; c < n; c += WARP) sum = fma(to_f32(row[c]), to_f32(own[c]), sum);
    sum = warp_sum(sum);
    if (lane == 0) d_weights[p] = d_weights[p] + sum;
}

#define ADD_BIAS(O, B)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    add_bias_##O##_##B(O* out, const B* bias, const u32* pairs, const u32* experts, const float* weights, u32 n, u32 items,        \
                       u32 wide, u32 weighs) {                                                                                     \
        begin();                                                                                                                   \
        add_bias(out, bias, pairs, experts, weights, n, items, wide, weighs);                                                      \
    }
ADD_BIAS(float, float)
ADD_BIAS(float, bf16)
ADD_BIAS(bf16, bf16)

#define GRADIENT(T, G)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    gradient_##T##_##G(const T* dy, u32 chosen, const u32* pairs, const u32* starts, const float* weights, G* grad, u32 n,         \
                       u32 weighs, u32 add) {                                                                                      \
        begin();                                                                                                                   \
        gradient(dy, chosen, pairs, starts, weights, grad, n, weighs, add);                                                        \
    }
GRADIENT(float, float)
GRADIENT(float, bf16)
GRADIENT(bf16, float)
GRADIENT(bf16, bf16)

#define WEIGHTS(T)                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    weights_##T(const T* dy, u32 chosen, const T* bias, const u32* pairs, const u32* experts, float* d_weights, u32 n,             \
                u32 count) {                                                                                                       \
        begin();                                                                                                                   \
        weights_gradient(dy, chosen, bias, pairs, experts, d_weights, n, count);                                                   \
    }
WEIGHTS(float)
WEIGHTS(bf16)
