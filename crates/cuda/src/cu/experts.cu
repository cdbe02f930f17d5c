// Products of experts in bf16: out[p] = x W^T of each pair, and the gradient by x, dy W. Sums: see experts_tile.cuh.
//
// Tiles of 16 and 32 pairs stream weights, which are read once; those of 64 and 128 are for experts with many pairs.
// Rows are aligned, except in the kernels of `any` shape.

/// Pairs of a product: each `chosen` of them read one row of x, or, for 0, each its own.
struct Pairs {
    const u32 *pairs, *starts;
    u32 experts, chosen;
};

/// out = x W^T of weights [J, L], or BACKWARD x W of weights [L, J].
template <class S, bool BACKWARD, bool WIDE, class T>
__device__ __forceinline__ void product(const bf16* __restrict__ x, const bf16* __restrict__ w, T* __restrict__ out, const Pairs& of, u32 J,
                                        u32 L) {
    extern __shared__ __align__(128) u8 dynamic_shared[];
    const Tile tile = find_tile<S::ROWS>(of.starts, of.experts, blockIdx.x);
    if (tile.rows == 0) return;
    const u32 first = blockIdx.y * S::COLS;
    const bf16* own = w + (u64)tile.expert * J * L;
    const Lines<S::ROWS, S::THREADS, WIDE> left(x, L, tile.rows, [&](u32 line) { return row_of(of.pairs, tile.first + line, of.chosen); });
    Sums<S> sums = {};
    multiply<BACKWARD>(dynamic_shared, left, own, tile.rows, first, J, L, sums);
    const bool twos = WIDE || (J * sizeof(T) | (u64)out) % (2 * sizeof(T)) == 0;
    sums.each(tile.rows, [&](u32 line, u32 col, float a, float b) {
        if (first + col >= J) return;
        T* to = out + (u64)(tile.first + line) * J + first + col;
        if (twos) {
            store_two(to, a, b);
        } else {
            to[0] = from_f32<T>(a);
            if (first + col + 1 < J) to[1] = from_f32<T>(b);
        }
    });
}

typedef Shape<16, 64, 1, 4, 6> Few16;
typedef Shape<32, 64, 1, 4, 5> Few32;
typedef Shape<64, 128, 2, 4, 4> Many64;
typedef Shape<128, 128, 2, 4, 3> Many128;

#define PRODUCT(NAME, SHAPE, BLOCKS, BACKWARD, WIDE, T, type)                                                                      \
    extern "C" __global__ void __launch_bounds__(SHAPE::THREADS, BLOCKS)                                                           \
    NAME##_##type(const bf16* x, const bf16* w, const u32* pairs, const u32* starts, T* out, u32 experts, u32 chosen, u32 n,       \
                  u32 k) {                                                                                                         \
        begin();                                                                                                                   \
        product<SHAPE, BACKWARD, WIDE>(x, w, out, Pairs{pairs, starts, experts, chosen}, BACKWARD ? k : n, BACKWARD ? n : k);      \
    }
#define PRODUCTS(T, type)                                                                                                          \
    PRODUCT(forward_16, Few16, 3, false, true, T, type)                                                                            \
    PRODUCT(forward_32, Few32, 3, false, true, T, type)                                                                            \
    PRODUCT(forward_64, Many64, 2, false, true, T, type)                                                                           \
    PRODUCT(forward_128, Many128, 2, false, true, T, type)                                                                         \
    PRODUCT(forward_any, Many128, 2, false, false, T, type)                                                                        \
    PRODUCT(backward_64, Many64, 2, true, true, T, type)                                                                           \
    PRODUCT(backward_128, Many128, 2, true, true, T, type)                                                                         \
    PRODUCT(backward_any, Many128, 2, true, false, T, type)
PRODUCTS(bf16, bf16)
PRODUCTS(float, float)
