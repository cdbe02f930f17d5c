// 4-bit weights, widened for products. A thread has a word: eight codes of a row, under one scale of 64.

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
