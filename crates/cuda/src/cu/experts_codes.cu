// Products of experts whose weights are in MXFP4, for experts with few pairs: out[p] = x W^T in bf16. A block widens the
// weights of its tile alone, on their way to shared memory; sums and their order are those of experts.cu, and so are the
// bits. Legend: as in experts.cuh.

/// A block of 32 values: its scale, and 16 bytes of codes.
#define CODE_BYTES 17
#define CODE_VALUES 32
/// Steps of 64 depths whose codes are on their way.
#define CODE_STEPS 3

/// Pairs of a product: each `chosen` of them read one row of x, or, for 0, each its own.
struct Pairs {
    const u32 *pairs, *starts;
    u32 experts, chosen;
};

/// a b of two bf16 each, rounded once.
__device__ __forceinline__ u32 times_two(u32 a, u32 b) {
    u32 out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(0x80008000u));
    return out;
}

/// Bytes of two words, or, where a choice's highest bit is set, eight times that of the byte.
__device__ __forceinline__ u32 bytes_of(u32 a, u32 b, u32 which) {
    u32 out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(which));
    return out;
}

/// Four codes as two words of two bf16, times a scale. `which`: what chooses their sizes, three bits of four each;
/// `signs`: 0xff for a negative one, a byte each.
__device__ __forceinline__ void widen_four(u32 which, u32 signs, u32 scale, u32& low, u32& high) {
    // The numbers' lower and upper bytes, each chosen from eight.
    const u32 lower = bytes_of(0xc0800000u, 0xc0804000u, which);
    const u32 upper = bytes_of(0x3f3f3f00u, 0x40404040u, which) | (signs & 0x80808080u);
    low = times_two(bytes_of(lower, upper, 0x5140), scale);
    high = times_two(bytes_of(lower, upper, 0x7362), scale);
}

/// Eight codes as four words of two bf16, times a scale.
__device__ __forceinline__ uint4 widen_eight(u32 codes, u32 scale) {
    // The sign of every second code is its byte's highest bit, and that of the others is after a shift.
    const u32 shifted = codes << 4;
    uint4 x;
    widen_four(codes & 0x7777, bytes_of(shifted, codes, 0xd9c8), scale, x.x, x.y);
    widen_four(codes >> 16 & 0x7777, bytes_of(shifted, codes, 0xfbea), scale, x.z, x.w);
    return x;
}

/// A block's bytes, in the words that it is in.
struct Code {
    u32 words[5];
};

/// LINES lines of weights of `length` elements each, in codes. A thread has a block of every step: half a line of it.
template <u32 LINES, u32 THREADS> struct CodeLines {
    static_assert(LINES * DEPTH == THREADS * CODE_VALUES, "a block of a step for each thread");
    const u8* block; // the thread's of the first step
    bool there;
    u32 length;

    __device__ __forceinline__ CodeLines(const u8* w, u32 length, u32 lines) : length(length) {
        const u32 line = threadIdx.x / 2;
        there = line < lines;
        block = w + (u64)(there ? line : 0) * (length / CODE_VALUES * CODE_BYTES) + threadIdx.x % 2 * CODE_BYTES;
    }
    /// Reads the block of a step: zeros if there is none. Its last byte is in the fifth word, so all are the weights'.
    __device__ __forceinline__ void read(Code& code, u32 depth) const {
        const bool here = there && depth + threadIdx.x % 2 * CODE_VALUES < length;
        const u8* from = block + depth / CODE_VALUES * CODE_BYTES;
        const u32* words = (const u32*)(from - (u64)from % 4);
#pragma unroll
        for (u32 i = 0; i < 5; i++) code.words[i] = here ? words[i] : 0;
    }
    /// Widens the block of a step into a panel.
    __device__ __forceinline__ void fill(u8* panel, const Code& code, u32 depth) const {
        const u32 line = threadIdx.x / 2, half = threadIdx.x % 2;
        const u32 shift = (u32)((u64)(block + depth / CODE_VALUES * CODE_BYTES) % 4) * 8;
        const u32 byte = code.words[0] >> shift & 255;
        const u32 one = byte == 255 ? 0x7fc0u : byte == 0 ? 0x40u : byte << 7, scale = one | one << 16;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            // The codes begin a byte after the block.
            u32 codes = __funnelshift_r(code.words[i], code.words[i + 1], shift);
            const u32 next = i < 3 ? __funnelshift_r(code.words[i + 1], code.words[i + 2], shift) : code.words[4] >> shift;
            codes = codes >> 8 | next << 24;
            *(uint4*)(panel + piece_at(line, half * 4 + i)) = widen_eight(codes, scale);
        }
    }
};

/// out = x W^T of weights [J, L] in codes.
template <class S, class T>
__device__ __forceinline__ void product(const bf16* __restrict__ x, const u8* __restrict__ w, T* __restrict__ out, const Pairs& of, u32 J,
                                        u32 L) {
    extern __shared__ __align__(128) u8 dynamic_shared[];
    const Tile tile = find_tile<S::ROWS>(of.starts, of.experts, blockIdx.x);
    if (tile.rows == 0) return;
    const u32 first = blockIdx.y * S::COLS;
    const u64 row = (u64)tile.expert * J + first;
    const CodeLines<S::COLS, S::THREADS> right(w + row * (L / CODE_VALUES * CODE_BYTES), L, J - first);
    Code coming[CODE_STEPS] = {};
#pragma unroll
    for (u32 i = 0; i < CODE_STEPS; i++) right.read(coming[i], i * DEPTH);
    const Lines<S::ROWS, S::THREADS, true> left(x, L, tile.rows, [&](u32 line) { return row_of(of.pairs, tile.first + line, of.chosen); });
    Sums<S> sums = {};
    u32 next = 0; // of `coming`
    run_stages<S::STAGES, S::STAGE_BYTES>(
        dynamic_shared, L,
        [&](u8* stage, u32 depth) {
            left.fill(stage, depth);
            // One of them: no index that is known late, so that all stay in registers.
#pragma unroll
            for (u32 i = 0; i < CODE_STEPS; i++) {
                if (i != next) continue;
                right.fill(stage + S::ROWS * 128, coming[i], depth);
                right.read(coming[i], depth + CODE_STEPS * DEPTH);
            }
            next = next == CODE_STEPS - 1 ? 0 : next + 1;
        },
        [&](const u8* stage, u32 depth) { sums.template add<true, true>(stage, steps_from(depth, L), tile.rows); });
    sums.each(tile.rows, [&](u32 line, u32 col, float a, float b) {
        if (first + col < J) store_two(out + (u64)(tile.first + line) * J + first + col, a, b);
    });
}

typedef Shape<16, 64, 1, 4, 4> Few16;
typedef Shape<32, 64, 1, 4, 4> Few32;
typedef Shape<64, 128, 2, 4, 4> Many64;

#define PRODUCT(NAME, SHAPE, BLOCKS, T)                                                                                            \
    extern "C" __global__ void __launch_bounds__(SHAPE::THREADS, BLOCKS)                                                           \
    NAME##_##T(const bf16* x, const u8* w, const u32* pairs, const u32* starts, T* out, u32 experts, u32 chosen, u32 n, u32 k) {   \
        begin();                                                                                                                   \
        product<SHAPE>(x, w, out, Pairs{pairs, starts, experts, chosen}, n, k);                                                    \
    }
#define PRODUCTS(T)                                                                                                                \
    PRODUCT(codes_16, Few16, 4, T)                                                                                                 \
    PRODUCT(codes_32, Few32, 4, T)                                                                                                 \
    PRODUCT(codes_64, Many64, 2, T)
PRODUCTS(bf16)
PRODUCTS(float)
