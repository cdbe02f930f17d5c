// Products of the columns of heads with each head's rows of one matrix, in bf16, by Hopper's own instructions: rows and
// heads are where their strides say, and the result is written where the next operation reads it. On other cards the
// file is empty.
//
// A sum is one chain of steps of 16 along the contraction, as everywhere: the tile is a matter of speed.

/// Elements from a row to the next and from a head to the next of x and of the output, and from a head to the next of
/// w.
struct Apart {
    u64 x_row, x_head, w_head, out_row, out_head;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A block has 128 rows and COLS columns of a head: out = x W^T with W [J, L], or BACKWARD x W with W [L, J].
template <u32 COLS, u32 STAGES, bool BACKWARD>
__device__ __forceinline__ void heads_product(const bf16* __restrict__ x, const bf16* __restrict__ w, bf16* __restrict__ out,
                                              const Apart& apart, u32 rows, u32 J, u32 L) {
    extern __shared__ __align__(128) u8 dynamic_shared[];
    const u32 first = blockIdx.x * COLS, first_row = blockIdx.y * ROWS, head = blockIdx.z;
    const u32 here = min(rows - first_row, (u32)ROWS);
    const bf16* own = w + head * apart.w_head;
    const Lines<ROWS, 256, true> left(x + head * apart.x_head + first_row * apart.x_row, L, here,
                                      [&](u32 line) { return line; }, (u32)apart.x_row);
    GroupSums<COLS> sums = {};
    if constexpr (BACKWARD) {
        const Depths<COLS, 256, true> right(own, J, first);
        run_products<STAGES, true, false>(aligned_shared(dynamic_shared), L, here, sums, [&](u8* stage, u32 depth) {
            right.fill(stage + ROWS * 128, depth, L);
            left.fill(stage, depth);
        });
    } else {
        const Lines<COLS, 256, true> right(own, L, J - first, [&](u32 line) { return first + line; });
        run_products<STAGES, true, true>(aligned_shared(dynamic_shared), L, here, sums, [&](u8* stage, u32 depth) {
            right.fill(stage + ROWS * 128, depth);
            left.fill(stage, depth);
        });
    }
    put_group(sums, out + head * apart.out_head + first_row * apart.out_row + first, apart.out_row, here, J - first);
}
#endif

#define HEADS(NAME, COLS, STAGES, BACKWARD)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 2) NAME##_##COLS(const bf16* x, const bf16* w, bf16* out, u64 x_row,         \
                                                                       u64 x_head, u64 w_head, u64 out_row, u64 out_head,          \
                                                                       u32 rows, u32 width, u32 length) {                          \
        begin();                                                                                                                   \
        ON_HOPPER((heads_product<COLS, STAGES, BACKWARD>(x, w, out, Apart{x_row, x_head, w_head, out_row, out_head}, rows, width,  \
                                                         length));)                                                                \
    }
HEADS(heads, 64, 4, false)
HEADS(heads, 128, 3, false)
HEADS(heads_turned, 64, 4, true)
HEADS(heads_turned, 128, 4, true)
