// Scans over the rows of a segment, forward and in reverse: how a warp holds 16 columns of a state, or of its gradient.
//
// A column depends on nothing but its own v, so that blocks have columns of one head. Eight lanes share four columns: lane j has rows
// 32 i + 4 j + m of each. Their sums over rows are of sixteen products each, one after the other, then of the lanes in a tree.

/// Rows whose operands are in shared memory at a time; a tile begins at each multiple of it in a segment.
#define TILE_ROWS 8
#define SCAN_THREADS 128
/// Columns of a block: 16 a warp.
#define SCAN_COLUMNS 64
/// Rows of a column that a lane has, and elements of a head at most.
#define OWN_ROWS 16
#define HEAD_MAX 128

/// Eight elements on their way to shared memory, as they are stored.
template <class T> struct Eight;
template <> struct Eight<float> {
    float4 x[2];
    __device__ __forceinline__ void clear() { x[0] = x[1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
    __device__ __forceinline__ void load(const float* p) { x[0] = ((const float4*)p)[0], x[1] = ((const float4*)p)[1]; }
    __device__ __forceinline__ void store(float* to) const { ((float4*)to)[0] = x[0], ((float4*)to)[1] = x[1]; }
};
template <> struct Eight<bf16> {
    uint4 x;
    __device__ __forceinline__ void clear() { x = make_uint4(0, 0, 0, 0); }
    __device__ __forceinline__ void load(const bf16* p) { x = *(const uint4*)p; }
    __device__ __forceinline__ void store(float* to) const {
        ((float4*)to)[0] = make_float4(low_f32(x.x), high_f32(x.x), low_f32(x.y), high_f32(x.y));
        ((float4*)to)[1] = make_float4(low_f32(x.z), high_f32(x.z), low_f32(x.w), high_f32(x.w));
    }
};

/// Sums of four columns over eight lanes; a lane gets that of its own column.
__device__ __forceinline__ float sum_columns(const float (&x)[4], u32 lane) {
    const bool high = lane & 16, odd = lane & 8;
    const float a = (high ? x[2] : x[0]) + __shfl_xor_sync(ALL_LANES, high ? x[0] : x[2], 16);
    const float b = (high ? x[3] : x[1]) + __shfl_xor_sync(ALL_LANES, high ? x[1] : x[3], 16);
    const float c = (odd ? b : a) + __shfl_xor_sync(ALL_LANES, odd ? a : b, 8);
    return c + __shfl_xor_sync(ALL_LANES, c, 4);
}

/// The four numbers of a lane's columns, each from a lane whose own column it is.
__device__ __forceinline__ void of_columns(float own, u32 lane, float (&x)[4]) {
#pragma unroll
    for (u32 c = 0; c < 4; c++) x[c] = __shfl_sync(ALL_LANES, own, (lane & 7) | (c & 2) << 3 | (c & 1) << 3);
}

/// A lane's own column, of the warp's 16.
__device__ __forceinline__ u32 own_column(u32 lane) { return (lane & 3) * 4 + (lane >> 4 & 1) * 2 + (lane >> 3 & 1); }

/// A lane's elements of a vector in shared memory.
__device__ __forceinline__ void own_rows(const float* x, u32 j, float (&to)[OWN_ROWS]) {
#pragma unroll
    for (u32 i = 0; i < OWN_ROWS / 4; i++) {
        const float4 four = *(const float4*)(x + i * 32 + j * 4);
        to[i * 4] = four.x, to[i * 4 + 1] = four.y, to[i * 4 + 2] = four.z, to[i * 4 + 3] = four.w;
    }
}

/// sum += the products of a lane's rows of four columns.
__device__ __forceinline__ void dot_own(const float (&s)[OWN_ROWS][4], const float (&x)[OWN_ROWS], float (&sum)[4]) {
#pragma unroll
    for (u32 i = 0; i < OWN_ROWS; i++) {
#pragma unroll
        for (u32 c = 0; c < 4; c++) sum[c] = fma(s[i][c], x[i], sum[c]);
    }
}

/// Zeros that come after four numbers: keeps the compiler from beginning what is independent of them first.
__device__ __forceinline__ void zeros_after(const float (&x)[4], float (&zeros)[4]) {
    // A grid has one layer, and the compiler does not know it.
#pragma unroll
    for (u32 c = 0; c < 4; c++) zeros[c] = as_f32(as_u32(x[c]) & blockIdx.z);
}

/// Reads or writes a lane's part of a state of `dk` x `dv` elements.
template <bool WRITES>
__device__ __forceinline__ void own_state(float* state, float (&s)[OWN_ROWS][4], u32 j, u32 column, u32 dk, u32 dv) {
#pragma unroll
    for (u32 i = 0; i < OWN_ROWS; i++) {
        const u32 row = i / 4 * 32 + j * 4 + i % 4;
        if (row >= dk) continue;
        float* at = state + (u64)row * dv + column;
        if (WRITES) {
            store4(at, s[i]);
        } else {
            load4(at, s[i]);
        }
    }
}
