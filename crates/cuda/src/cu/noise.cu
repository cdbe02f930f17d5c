// Noise on the sampler's rows, for `bench mismatch`: what cpu/noise.rs does, operation by operation. A block has a row.

#define NOISE_STREAM 6
#define E4M3_MAX 448.0f

/// Two normal numbers, as `plimsoll_base::rng::normal_pair`.
__device__ __forceinline__ void normal_pair(u32 a, u32 b, float& first, float& second) {
    double radius = sqrt(-2.0 * log((double)unit_f32(a))), s, c;
    sincos(6.283185307179586 * (double)unit_f32(b), &s, &c);
    first = (float)(radius * c);
    second = (float)(radius * s);
}

/// The nearest number with three bits after the leading one, whose exponent is at least -6; ties to even.
__device__ __forceinline__ float nearest_e4m3(float x) {
    int exponent = max((int)(as_u32(x) >> 23 & 0xff) - 127, -6);
    float quantum = ldexpf(1.0f, exponent - 3);
    return __fmul_rn(rintf(__fdiv_rn(x, quantum)), quantum);
}

#define NOISE(T)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        blur_##T(T* x, const u32* keys, u32 k, float sigma, float share, u64 seed) {                                 \
        begin();                                                                                                     \
        const u32* key = keys + KEY_WORDS * (u64)blockIdx.x;                                                         \
        T* row = x + (u64)blockIdx.x * k;                                                                            \
        u64 sample = (u64)key[1] << 32 | key[0], token = (u64)key[2] << 32;                                          \
        if (unit_f32(philox(seed, NOISE_STREAM, sample, token | 0xffffffffu).x) >= share) return;                    \
        for (u32 n = threadIdx.x; n * 4 < k; n += blockDim.x) {                                                      \
            uint4 r = philox(seed, NOISE_STREAM, sample, token | n);                                                 \
            float g[4];                                                                                              \
            normal_pair(r.x, r.y, g[0], g[1]);                                                                       \
            normal_pair(r.z, r.w, g[2], g[3]);                                                                       \
            for (u32 i = 0; i < 4 && n * 4 + i < k; i++) {                                                           \
                float factor = __fadd_rn(1.0f, __fmul_rn(sigma, g[i]));                                              \
                row[n * 4 + i] = from_f32<T>(__fmul_rn(to_f32(row[n * 4 + i]), factor));                             \
            }                                                                                                        \
        }                                                                                                            \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) round_##T(T* x, u32 k) {                                       \
        begin();                                                                                                     \
        __shared__ float parts[8];                                                                                   \
        T* row = x + (u64)blockIdx.x * k;                                                                            \
        float largest = 0.0f;                                                                                        \
        for (u32 i = threadIdx.x; i < k; i += blockDim.x) largest = fmaxf(largest, fabsf(to_f32(row[i])));           \
        largest = warp_max(largest);                                                                                 \
        if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = largest;                                            \
        __syncthreads();                                                                                             \
        for (u32 i = 0; i < 8; i++) largest = fmaxf(largest, parts[i]);                                              \
        if (largest == 0.0f) return;                                                                                 \
        float scale = __fdiv_rn(E4M3_MAX, largest);                                                                  \
        for (u32 i = threadIdx.x; i < k; i += blockDim.x) {                                                          \
            row[i] = from_f32<T>(__fdiv_rn(nearest_e4m3(__fmul_rn(to_f32(row[i]), scale)), scale));                  \
        }                                                                                                            \
    }
NOISE(float)
NOISE(bf16)
