// Checks of a checked build after an operation.

/// Keeps the index of an element whose exponent is all ones: code, low and high half of the index.
__device__ __forceinline__ void keep_index(u64 i) {
    if (atomicCAS(&plimsoll_fault[0], 0u, (u32)NOT_FINITE) == 0u) {
        plimsoll_fault[1] = (u32)i;
        plimsoll_fault[2] = (u32)(i >> 32);
    }
}

extern "C" __global__ void find_not_finite_f32(const u32* x, u64 n) {
    begin();
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        if ((x[i] & 0x7f800000u) == 0x7f800000u) keep_index(i);
    }
}

extern "C" __global__ void find_not_finite_bf16(const u16* x, u64 n) {
    begin();
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        if ((x[i] & 0x7f80u) == 0x7f80u) keep_index(i);
    }
}
