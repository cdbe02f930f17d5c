// Moving blocks of columns, one of each head in each row, between buffers. A thread moves one element, or eight where
// both sides are in whole 16-byte pieces.

/// Places of blocks: the first one, and the elements from a row and from a head to the next.
struct Place {
    u64 first, row, head;
};

enum Order : u32 { SAME, TO_HALVES, TO_PAIRS };

/// Where element i of a block of n comes from.
__device__ __forceinline__ u32 source_of(u32 order, u32 n, u32 i) {
    if (order == TO_HALVES) return i < n / 2 ? 2 * i : 2 * (i - n / 2) + 1;
    if (order == TO_PAIRS) return i / 2 + i % 2 * (n / 2);
    return i;
}

template <class S, class D>
__device__ __forceinline__ void move_columns(const S* __restrict__ from, D* __restrict__ to, const Place& at, const Place& in, u32 heads,
                                             u32 columns, u32 order, u32 add, u64 items) {
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const u64 block = i / columns;
    const u32 c = (u32)(i - block * columns);
    const u64 row = block / heads, head = block - row * heads;
    const float x = to_f32(from[at.first + row * at.row + head * at.head + source_of(order, columns, c)]);
    D* out = to + in.first + row * in.row + head * in.head + c;
    *out = from_f32<D>(add ? to_f32(*out) + x : x);
}

#define MOVE_COLUMNS(S, D)                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                                      \
        move_columns_##S##_##D(const S* from, D* to, u64 from_first, u64 from_row, u64 from_head, u64 to_first, u64 to_row, u64 to_head,    \
                               u32 heads, u32 columns, u32 order, u32 add, u64 items) {                                                    \
        begin();                                                                                                                           \
        move_columns<S, D>(from, to, {from_first, from_row, from_head}, {to_first, to_row, to_head}, heads, columns, order, add, items);    \
    }
MOVE_COLUMNS(float, float)
MOVE_COLUMNS(float, bf16)
MOVE_COLUMNS(bf16, float)
MOVE_COLUMNS(bf16, bf16)

/// The same, from bf16: a thread has eight elements of the result. `pieces`: of a block; `items`: of all.
template <class D>
__device__ __forceinline__ void move_eights(const bf16* __restrict__ from, D* __restrict__ to, const Place& at, const Place& in, u32 heads,
                                            u32 pieces, u32 order, u32 items) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const u32 block = i / pieces, c = (i - block * pieces) * 8, row = block / heads, head = block - row * heads;
    from += at.first + row * at.row + head * at.head;
    float x[8];
    if (order == SAME) {
        load8(from + c, x);
    } else {
#pragma unroll
        for (u32 j = 0; j < 8; j++) x[j] = to_f32(from[source_of(order, pieces * 8, c + j)]);
    }
    store8(to + in.first + row * in.row + head * in.head + c, x);
}

#define MOVE_EIGHTS(D)                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                                      \
        move_eights_##D(const bf16* from, D* to, u64 from_first, u64 from_row, u64 from_head, u64 to_first, u64 to_row, u64 to_head,        \
                        u32 heads, u32 pieces, u32 order, u32 items) {                                                                      \
        begin();                                                                                                                           \
        move_eights<D>(from, to, {from_first, from_row, from_head}, {to_first, to_row, to_head}, heads, pieces, order, items);              \
    }
MOVE_EIGHTS(float)
MOVE_EIGHTS(bf16)
