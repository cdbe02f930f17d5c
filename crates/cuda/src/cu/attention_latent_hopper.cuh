// Shared by the kernels of attention over latents by Hopper's own instructions: 64 rows of queries, gradients or keys
// in panels (attention_hopper.cuh), and two groups of four warps that multiply them.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Panels of a key and of a value.
#define KEY_PANELS (LATENT_KEY / 64)
#define VALUE_PANELS (LATENT_VALUE / 64)
/// Threads of a group.
#define GROUP 128

/// Waits for a group's warps.
template <int OWN> __device__ __forceinline__ void group_barrier() { team_barrier(OWN); }

/// Where the rows of 64 are that a thread copies: a piece of each of four.
struct PanelRows {
    const bf16* from[4];
    bool is_there[4];

    /// Row `row(i)` of the tile is at `at(i)`, null for none.
    template <class At> __device__ __forceinline__ void find(const bf16* none, const At& at) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const bf16* row = at(threadIdx.x % GROUP / 8 + 16 * i);
            is_there[i] = row != nullptr;
            from[i] = (row ? row : none) + threadIdx.x % 8 * 8;
        }
    }
    /// A group copies panel `panel` of rows that begin `skip` elements further.
    __device__ __forceinline__ void copy(u8* panels, u32 panel, u32 skip) const {
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            copy_async_16((bf16*)(panels + panel * PANEL_BYTES) + swizzled<64>(threadIdx.x % GROUP / 8 + 16 * i, threadIdx.x % 8),
                          from[i] + skip + panel * 64, is_there[i]);
    }
};

/// out = rows of `left` . rows of `right` over STEPS steps of 16 columns.
template <int STEPS> __device__ __forceinline__ void panels_dot(float (&out)[UNIT / 2], u32 left, u32 right, u32 first = 0) {
    begin_products();
#pragma unroll
    for (u32 t = 0; t < STEPS; t++) multiply(out, rows_operand(left, first + t), rows_operand(right, first + t), t > 0);
    end_products();
    wait_products<0>();
    hold(out);
}

/// sum += the step's weights . columns of 64 rows from `panels` on.
template <int N> __device__ __forceinline__ void panels_sum(float (&sum)[N], u32 weights, u32 panels) {
    hold(sum);
    begin_products();
#pragma unroll
    for (u32 t = 0; t < UNIT / STEP; t++) multiply<1, 0>(sum, rows_operand(weights, t), columns_operand(panels, t), 1);
    end_products();
}

/// Writes a group's half of the weights for `panels_sum`, and waits for the other.
template <int OWN> __device__ __forceinline__ void put_half(u8* weights, const float (&x)[UNIT / 4]) {
    const u32 lane = threadIdx.x % WARP, row = threadIdx.x % GROUP / WARP * TILE + lane / 4;
#pragma unroll
    for (u32 n = 0; n < 4; n++)
#pragma unroll
        for (u32 r = 0; r < 2; r++)
            *(u32*)((bf16*)weights + swizzled<64>(row + 8 * r, OWN * 4 + n) + lane % 4 * 2) = pack_bf16(x[4 * n + 2 * r], x[4 * n + 2 * r + 1]);
    copied();
    __syncthreads();
}
#endif
