// Weights of 4 bits, widened for the products that read them. A thread has a word: eight codes of a row, under one scale of 64.

__constant__ float NF4[16] = {-1.0f,
                              -0.69619280f,
                              -0.52507305f,
                              -0.39491750f,
                              -0.28444138f,
                              -0.18477343f,
                              -0.091050036f,
                              0.0f,
                              0.079580300f,
                              0.16093020f,
                              0.24611230f,
                              0.33791524f,
                              0.44070983f,
                              0.56261700f,
                              0.72295684f,
                              1.0f};

template <class T>
__device__ __forceinline__ void dequantize(const u32* __restrict__ words, const float* __restrict__ scales,
                                           T* __restrict__ out, u64 count) {
    // Sixteen banks for sixteen numbers: lanes that read different ones do not wait for each other.
    __shared__ float numbers[16];
    if (threadIdx.x < 16) numbers[threadIdx.x] = NF4[threadIdx.x];
    __syncthreads();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    u32 word = words[i];
    float scale = scales[i / 8], x[8];
#pragma unroll
    for (u32 j = 0; j < 8; j++) x[j] = numbers[word >> (4 * j) & 15] * scale;
    store8(out + i * 8, x);
}

extern "C" __global__ void __launch_bounds__(256)
    dequantize_bf16(const u32* words, const float* scales, bf16* out, u64 count) {
    begin();
    dequantize(words, scales, out, count);
}

extern "C" __global__ void __launch_bounds__(256)
    dequantize_float(const u32* words, const float* scales, float* out, u64 count) {
    begin();
    dequantize(words, scales, out, count);
}
