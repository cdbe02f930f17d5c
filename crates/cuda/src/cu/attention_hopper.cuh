// Shared by the attention kernels of Hopper: units of 64 rows in panels as operands of its products (hopper.cuh).

/// Alignment of panels in shared memory.
#define PANEL_ALIGN 1024

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// Bytes from panel to panel of UNIT rows, and of a step of 16 rows.
#define PANEL_BYTES (UNIT * 128)
#define STEP_BYTES (STEP * 128)

/// Step t along D of UNIT rows in panels, as rows of an operand.
__device__ __forceinline__ u64 rows_operand(u32 panels, u32 t) {
    return operand(panels + t / 4 * PANEL_BYTES + t % 4 * 32);
}
/// Step t of 16 rows, as an operand of D columns.
__device__ __forceinline__ u64 columns_operand(u32 panels, u32 t) { return operand(panels + t * STEP_BYTES, PANEL_BYTES); }

/// Sums of 64 columns as the left operand of the next products, four steps.
__device__ __forceinline__ void as_left(u32 (&to)[UNIT / STEP][4], const float (&from)[UNIT / 2]) {
#pragma unroll
    for (u32 t = 0; t < UNIT / STEP; t++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) to[t][i] = pack_bf16(from[8 * t + 2 * i], from[8 * t + 2 * i + 1]);
}

/// sum += left . UNIT rows of D columns.
template <int D>
__device__ __forceinline__ void sum_unit(float (&sum)[D / 2], const u32 (&left)[UNIT / STEP][4], u32 panels) {
#pragma unroll
    for (u32 t = 0; t < UNIT / STEP; t++) multiply_left_by_columns(sum, left[t], columns_operand(panels, t), 1);
}

__device__ __forceinline__ u8* aligned_shared() {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    return dynamic_shared + (PANEL_ALIGN - shared_address(dynamic_shared) % PANEL_ALIGN) % PANEL_ALIGN;
}

/// out = left . rows of a unit, as `dot_half` of both halves.
template <int D>
__device__ __forceinline__ void dot_unit(float (&out)[2][4][4], const u32 (&left)[D / STEP][4], const bf16* unit) {
    float(&sums)[UNIT / 2] = reinterpret_cast<float(&)[UNIT / 2]>(out);
    begin_products();
#pragma unroll
    for (u32 t = 0; t < D / STEP; t++) multiply_left(sums, left[t], rows_operand(shared_address(unit), t), t > 0);
    end_products();
    wait_products<0>();
    hold(sums);
}

/// out = left . a unit's values, as `sum_half` of both halves, from zero.
template <int D>
__device__ __forceinline__ void values_of_unit(float (&out)[D / 8][4], const u32 (&left)[2][2][4], const bf16* unit) {
    float(&sums)[D / 2] = reinterpret_cast<float(&)[D / 2]>(out);
    begin_products();
#pragma unroll
    for (u32 t = 0; t < UNIT / STEP; t++)
        multiply_left_by_columns(sums, left[t / 2][t % 2], columns_operand(shared_address(unit), t), t > 0);
    end_products();
    wait_products<0>();
    hold(sums);
}
#else
// Never called: the kernels of other cards have products of their own.
template <int D> __device__ void dot_unit(float (&)[2][4][4], const u32 (&)[D / STEP][4], const bf16*);
template <int D> __device__ void values_of_unit(float (&)[D / 8][4], const u32 (&)[2][2][4], const bf16*);
#endif
