// Scans over the rows of a segment, forward and in reverse: how a warp holds 16 columns of a state, or of its gradient.
//
// A column depends on its own v alone, so blocks have columns of one head. Eight lanes share four columns: lane j has
// rows 32 i + 4 j + m of each. Their sums over rows are chains of sixteen products each, then a tree over the lanes.

#define SCAN_THREADS 128
/// Columns of a block: 16 a warp.
#define SCAN_COLUMNS 64
/// Rows of a column that a lane has, and maximum elements of a head.
#define OWN_ROWS 16
#define HEAD_MAX 128

/// Stored elements of a scan: eight of bf16 or four of f32 are copied at a time, and a tile has the rows that 256
/// copies fill with heads of 128 elements.
template <class T> struct Stored;
template <> struct Stored<float> {
    static constexpr u32 COPY = 4, TILE_ROWS = 8;
    static __device__ __forceinline__ void widen(const float* from, float* to) { *(float4*)to = *(const float4*)from; }
};
template <> struct Stored<bf16> {
    static constexpr u32 COPY = 8, TILE_ROWS = 16;
    static __device__ __forceinline__ void widen(const bf16* from, float* to) {
        const uint4 x = *(const uint4*)from;
        ((float4*)to)[0] = make_float4(low_f32(x.x), high_f32(x.x), low_f32(x.y), high_f32(x.y));
        ((float4*)to)[1] = make_float4(low_f32(x.z), high_f32(x.z), low_f32(x.w), high_f32(x.w));
    }
};

/// Operands of some rows of a segment, as X or f32: q and k of the head; v, or o's gradient, of a block's columns.
template <class X, u32 ROWS>
struct ScanTile {
    X q[ROWS][HEAD_MAX], k[ROWS][HEAD_MAX], v[ROWS][SCAN_COLUMNS];
};

/// Shared memory of a scan. f32 tiles are used in turn; the next copies run while rows are computed. Gates: e^g, beta.
template <class T>
struct ScanShared {
    static constexpr u32 ROWS = Stored<T>::TILE_ROWS;
    ScanTile<float, ROWS> tiles[2];
    ScanTile<T, ROWS> next;
    float gates[2][ROWS][2], next_gates[ROWS][2];
};

/// Four bytes from global to shared memory, asynchronously; zeros where `valid` is false.
__device__ __forceinline__ void copy_async_4(void* dst_shared, const void* src_global, bool valid) {
    const u32 bytes = valid ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(dst_shared)), "l"(src_global), "r"(bytes) : "memory");
}

/// Operands of a scan.
template <class T>
struct ScanFrom {
    const T *qkv, *v;
    const float* gates;
    u32 v_stride, head, first_column;
    DeltaHeads heads;
};

/// Begins to copy rows `row` to `row + count` of the pass.
template <class T>
__device__ __forceinline__ void bring(const ScanFrom<T>& from, ScanShared<T>& shared, u32 row, u32 count) {
    constexpr u32 COPY = Stored<T>::COPY, ROW_COPIES = HEAD_MAX / COPY, COLUMN_COPIES = SCAN_COLUMNS / COPY;
    const DeltaHeads& h = from.heads;
#pragma unroll
    for (u32 n = 0; n < 2; n++) {
        const u32 i = (threadIdx.x + n * SCAN_THREADS) / ROW_COPIES, c = threadIdx.x % ROW_COPIES * COPY;
        const bool is_inside = i < count && c < h.key_dim;
        const T* q = from.qkv + (u64)(row + (is_inside ? i : 0)) * h.conv_width() + h.key_of(from.head) * h.key_dim + (is_inside ? c : 0);
        copy_async_16(&shared.next.q[i][c], q, is_inside);
        copy_async_16(&shared.next.k[i][c], q + h.key_width(), is_inside);
    }
    const u32 i = threadIdx.x / COLUMN_COPIES, c = from.first_column + threadIdx.x % COLUMN_COPIES * COPY;
    const bool is_inside = i < count && c < h.value_dim;
    const T* v = from.v + (u64)(row + (is_inside ? i : 0)) * from.v_stride + from.head * h.value_dim + (is_inside ? c : 0);
    copy_async_16(&shared.next.v[i][c - from.first_column], v, is_inside);
    if (threadIdx.x < 2 * Stored<T>::TILE_ROWS) {
        const u32 ig = threadIdx.x / 2, beta = threadIdx.x % 2;
        const float* gate = from.gates + ((u64)(row + (ig < count ? ig : 0)) * 2 + beta) * h.value_heads + from.head;
        copy_async_4(&shared.next_gates[ig][beta], gate, ig < count);
    }
    copy_async_commit();
}

/// Widens what has been copied: each thread its own copies.
template <class T>
__device__ __forceinline__ void widen(ScanShared<T>& shared, u32 parity) {
    constexpr u32 COPY = Stored<T>::COPY, ROW_COPIES = HEAD_MAX / COPY, COLUMN_COPIES = SCAN_COLUMNS / COPY;
    copy_async_wait<0>();
    ScanTile<float, Stored<T>::TILE_ROWS>& tile = shared.tiles[parity];
#pragma unroll
    for (u32 n = 0; n < 2; n++) {
        const u32 i = (threadIdx.x + n * SCAN_THREADS) / ROW_COPIES, c = threadIdx.x % ROW_COPIES * COPY;
        Stored<T>::widen(&shared.next.q[i][c], &tile.q[i][c]);
        Stored<T>::widen(&shared.next.k[i][c], &tile.k[i][c]);
    }
    const u32 i = threadIdx.x / COLUMN_COPIES, c = threadIdx.x % COLUMN_COPIES * COPY;
    Stored<T>::widen(&shared.next.v[i][c], &tile.v[i][c]);
    if (threadIdx.x < 2 * Stored<T>::TILE_ROWS) {
        const float gate = shared.next_gates[threadIdx.x / 2][threadIdx.x % 2];
        shared.gates[parity][threadIdx.x / 2][threadIdx.x % 2] = threadIdx.x % 2 ? gate : exp_f32(gate);
    }
}

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

/// x, once `other` is there, so that the compiler makes `other` first: it does not know that a grid has one layer.
__device__ __forceinline__ float after(float x, float other) { return as_f32(as_u32(x) | (as_u32(other) & blockIdx.z)); }

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
