// Gradients of experts' weights in bf16: for each expert dy^T x over its pairs, in steps of 16 pairs, ascending. The
// order of a sum depends on the number of the expert's pairs and on nothing else.

typedef Shape<128, 128, 2, 4, 3> Block;

/// An operand with rows of `width` elements: for each pair, or, where `chosen` is not 0, for each of M rows.
struct Rows {
    const bf16* x;
    u32 width, chosen;
};

/// grad = dy^T x, or grad +=, the product rounded first.
template <bool WIDE, class T>
__device__ __forceinline__ void gradient(const Rows& dy, const Rows& x, const u32* __restrict__ pairs, const u32* __restrict__ starts,
                                         T* __restrict__ grad, u32 add) {
    extern __shared__ __align__(128) u8 dynamic_shared[];
    const u32 n = dy.width, k = x.width, col_tiles = tiles_of(k, Block::COLS);
    const u32 i = blockIdx.x / col_tiles * Block::ROWS, j = blockIdx.x % col_tiles * Block::COLS;
    const u32 first = starts[blockIdx.y], end = starts[blockIdx.y + 1], length = end - first;
    if (length == 0 && add) return;
    const Depths<Block::ROWS, Block::THREADS, WIDE> left(dy.x, n, i);
    const Depths<Block::COLS, Block::THREADS, WIDE> right(x.x, k, j);
    // Rows are found a step before they are copied.
    u32 left_rows[left.EACH], right_rows[right.EACH];
    const auto find = [&](u32 depth) {
        find_rows<Block::THREADS>(left_rows, pairs, first + depth, end, dy.chosen);
        find_rows<Block::THREADS>(right_rows, pairs, first + depth, end, x.chosen);
    };
    find(0);
    Sums<Block> sums = {};
    run_stages<Block::STAGES, Block::STAGE_BYTES>(
        dynamic_shared, length,
        [&](u8* stage, u32 depth) {
            left.fill(stage, left_rows, length - depth);
            right.fill(stage + Block::ROWS * 128, right_rows, length - depth);
            find(depth + DEPTH);
        },
        [&](const u8* stage, u32 depth) { sums.template add<false, false>(stage, steps_from(depth, length), Block::ROWS); });
    T* own = grad + (u64)blockIdx.y * n * k;
    const bool twos = WIDE || (k * sizeof(T) | (u64)grad) % (2 * sizeof(T)) == 0;
    sums.each(n - i, [&](u32 line, u32 col, float a, float b) {
        if (j + col >= k) return;
        T* to = own + (u64)(i + line) * k + j + col;
        const bool both = j + col + 1 < k;
        if (twos) {
            store_gradient(to, a, b, add);
        } else {
            a = to_f32(from_f32<T>(a)), b = to_f32(from_f32<T>(b));
            to[0] = from_f32<T>(add ? to_f32(to[0]) + a : a);
            if (both) to[1] = from_f32<T>(add ? to_f32(to[1]) + b : b);
        }
    });
}

#define GRADIENT(NAME, WIDE, T, type)                                                                                              \
    extern "C" __global__ void __launch_bounds__(Block::THREADS, 2)                                                                \
    NAME##_##type(const bf16* dy, u32 dy_chosen, const bf16* x, u32 x_chosen, const u32* pairs, const u32* starts, T* grad, u32 n, \
                  u32 k, u32 add) {                                                                                                \
        begin();                                                                                                                   \
        gradient<WIDE>(Rows{dy, n, dy_chosen}, Rows{x, k, x_chosen}, pairs, starts, grad, add);                                    \
    }
GRADIENT(gradient, true, bf16, bf16)
GRADIENT(gradient, true, float, float)
GRADIENT(gradient_any, false, bf16, bf16)
GRADIENT(gradient_any, false, float, float)
