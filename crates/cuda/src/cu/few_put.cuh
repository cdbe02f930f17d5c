// Where the sums of a tile of few rows go: what follows a product is done to them on their way out.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A thread's sums of one row in pairs of neighbours: HALF 0 is row lane / 4 of its warp's, 1 is eight rows further.
#define TWO(sums, j, i) (sums)[4 * (j) + 2 * HALF + (i)]

/// out = sums + bias, or sums.
struct ToBf16 {
    /// Runs of W's rows that a tile has.
    static constexpr u32 RUNS = 1;
    bf16* out;
    const bf16* bias;

    template <u32 N, int HALF> __device__ __forceinline__ void row(const float (&sums)[N / 2], u32 row, u32 col, u32 cols) const {
        const u32 lane = threadIdx.x % 4;
        bf16* to = out + (u64)row * cols + col + lane * 2;
#pragma unroll
        for (u32 j = 0; j < N / 8; j++) {
            const u32 own = col + j * 8 + lane * 2;
            if (own >= cols) return;
            float x = TWO(sums, j, 0), y = TWO(sums, j, 1);
            if (bias) {
                const u32 two = *(const u32*)(bias + own);
                x = x + low_f32(two);
                y = y + high_f32(two);
            }
            *(u32*)(to + j * 8) = pack_bf16(x, y);
        }
    }
};

/// out = added + sums, or sums.
struct ToF32 {
    static constexpr u32 RUNS = 1;
    float* out;
    const float* added;

    template <u32 N, int HALF> __device__ __forceinline__ void row(const float (&sums)[N / 2], u32 row, u32 col, u32 cols) const {
        const u64 at = (u64)row * cols + col + threadIdx.x % 4 * 2;
#pragma unroll
        for (u32 j = 0; j < N / 8; j++) {
            if (col + j * 8 >= cols) return;
            float2 sum = make_float2(TWO(sums, j, 0), TWO(sums, j, 1));
            if (added) {
                const float2 x = *(const float2*)(added + at + j * 8);
                sum = make_float2(x.x + sum.x, x.y + sum.y);
            }
            *(float2*)(out + at + j * 8) = sum;
        }
    }
};

/// out = activation(gate) * up, each rounded before, as `glu` of rows.cu: the tile has gates, then their ups.
struct ToGated {
    static constexpr u32 RUNS = 2;
    bf16* out;
    u32 gelu;

    template <u32 N, int HALF> __device__ __forceinline__ void row(const float (&sums)[N / 2], u32 row, u32 col, u32 cols) const {
        const u32 lane = threadIdx.x % 4;
        bf16* to = out + (u64)row * cols + col + lane * 2;
#pragma unroll
        for (u32 j = 0; j < N / 16; j++) {
            if (col + j * 8 >= cols) return;
            const u32 gates = pack_bf16(TWO(sums, j, 0), TWO(sums, j, 1)), ups = pack_bf16(TWO(sums, j + N / 16, 0), TWO(sums, j + N / 16, 1));
            const float x = bent<bf16>(low_f32(gates), gelu) * low_f32(ups), y = bent<bf16>(high_f32(gates), gelu) * high_f32(ups);
            *(u32*)(to + j * 8) = pack_bf16(x, y);
        }
    }
};
#endif
