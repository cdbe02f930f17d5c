// Rounding to numbers of eight bits: rows of inputs, matrices of weights, and their transposes.

/// Codes and scales of rows. `x`: [M, K], K a multiple of 16; `codes`: [M, K]; `scales`: [K / 128, pitch]. Half a warp
/// takes blocks in turn, 8 neighbours a thread.
extern "C" __global__ void __launch_bounds__(256) fp8_rows_bf16(const bf16* x, u8* codes, float* scales, u32 rows, u32 width, u32 pitch) {
    begin();
    const u32 steps = tiles_of(width, FP8_BLOCK), half = threadIdx.x / 16, lane = threadIdx.x % 16;
    const u64 blocks = (u64)rows * steps;
    // Both halves of a warp run as often: a block beyond the last is computed and not stored.
    for (u64 of = (u64)blockIdx.x * (blockDim.x / 16) + half; of / 2 * 2 < blocks; of += (u64)gridDim.x * (blockDim.x / 16)) {
        const u32 row = (u32)(of / steps), step = (u32)(of % steps), col = step * FP8_BLOCK + lane * 8;
        const bool is_inside = of < blocks && col < width;
        float own[8] = {};
        if (is_inside) load8(x + (u64)row * width + col, own);
        u32 largest = 0;
#pragma unroll
        for (u32 i = 0; i < 8; i++) largest = max(largest, as_u32(own[i]) & 0x7fffffff);
#pragma unroll
        for (u32 apart = 8; apart > 0; apart >>= 1) largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, apart));
        const u32 scale = fp8_scale(largest);
        const float inverse = fp8_inverse(scale);
        const bool is_finite = largest < 0x7f800000;
        u32 pairs[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) pairs[i] = fp8_pair(own[2 * i], own[2 * i + 1], inverse, is_finite);
        if (!is_inside) continue;
        *(uint2*)(codes + (u64)row * width + col) = make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
        if (lane == 0) scales[(u64)step * pitch + row] = as_f32(scale);
    }
}

/// Codes and scales of a matrix, a block of threads for each 128 x 128. `scales`: [N / 128, pitch].
extern "C" __global__ void __launch_bounds__(512) fp8_weights_bf16(const bf16* w, u8* codes, float* scales, u32 n, u32 k, u32 pitch) {
    begin();
    __shared__ u32 parts[16];
    const u32 row = blockIdx.y * FP8_BLOCK + threadIdx.x / 32, col = blockIdx.x * FP8_BLOCK + threadIdx.x % 32 * 4;
    float own[8][4];
    u32 largest = 0;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        own[i][0] = own[i][1] = own[i][2] = own[i][3] = 0.0f;
        if (row + i * 16 < n && col < k) load4(w + (u64)(row + i * 16) * k + col, own[i]);
#pragma unroll
        for (u32 j = 0; j < 4; j++) largest = max(largest, as_u32(own[i][j]) & 0x7fffffff);
    }
    largest = __reduce_max_sync(ALL_LANES, largest);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = largest;
    __syncthreads();
    largest = __reduce_max_sync(ALL_LANES, parts[threadIdx.x % 16]);
    const u32 scale = fp8_scale(largest);
    const float inverse = fp8_inverse(scale);
    const bool is_finite = largest < 0x7f800000;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        if (row + i * 16 >= n || col >= k) continue;
        *(u32*)(codes + (u64)(row + i * 16) * k + col) =
            fp8_pair(own[i][0], own[i][1], inverse, is_finite) | fp8_pair(own[i][2], own[i][3], inverse, is_finite) << 16;
    }
    if (threadIdx.x == 0) scales[(u64)blockIdx.y * pitch + blockIdx.x] = as_f32(scale);
}

/// to[c][r] = from[r][c], tiles of 64 x 64, rows and columns multiples of 16. The scales are transposed too, from
/// [rows / 128, pitch] to [columns / 128, turned_pitch].
extern "C" __global__ void __launch_bounds__(256) fp8_turn(const u8* from, u8* to, u32 rows, u32 cols, const float* scales, float* turned_scales,
                                                           u32 pitch, u32 turned_pitch) {
    begin();
    __shared__ u8 tile[64][68];
    const u32 row = blockIdx.y * 64, col = blockIdx.x * 64;
    if (threadIdx.x == 0 && row % FP8_BLOCK == 0 && col % FP8_BLOCK == 0) {
        const u32 of_row = row / FP8_BLOCK, of_col = col / FP8_BLOCK;
        turned_scales[(u64)of_col * turned_pitch + of_row] = scales[(u64)of_row * pitch + of_col];
    }
    // A thread moves 16 neighbours each way.
    const u32 line = threadIdx.x / 4, piece = threadIdx.x % 4 * 16;
    if (row + line < rows && col + piece < cols) {
        const uint4 four = *(const uint4*)(from + (u64)(row + line) * cols + col + piece);
        u32* at = (u32*)&tile[line][piece];
        at[0] = four.x, at[1] = four.y, at[2] = four.z, at[3] = four.w;
    }
    __syncthreads();
    if (col + line >= cols || row + piece >= rows) return;
    u32 words[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u8* down = &tile[piece + 4 * i][line];
        words[i] = down[0] | (u32)down[68] << 8 | (u32)down[136] << 16 | (u32)down[204] << 24;
    }
    *(uint4*)(to + (u64)(col + line) * rows + row + piece) = make_uint4(words[0], words[1], words[2], words[3]);
}
