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

/// Four codes of the low half of a word, times a scale: two words of two bf16.
__device__ __forceinline__ void widen_four(u32 codes, u32 scale, u32& low, u32& high) {
    // The numbers' upper and lower bytes, chosen from eight by three bits each.
    const u32 which = codes & 0x7777;
    const u32 upper = __byte_perm(0x3f3f3f00u, 0x40404040u, which), lower = __byte_perm(0xc0800000u, 0xc0804000u, which);
    const u32 signs = codes & 0x8888;
    low = times_two(__byte_perm(lower, upper, 0x5140) | (signs & 0x8) << 12 | (signs & 0x80) << 24, scale);
    high = times_two(__byte_perm(lower, upper, 0x7362) | (signs & 0x800) << 4 | (signs & 0x8000) << 16, scale);
}

/// A step's codes: a thread has eight of each of several lines, and their scales.
template <u32 EACH> struct Codes {
    u32 words[EACH], scales[EACH];
};

/// LINES lines of weights from `first` on, of `length` elements each: as `Lines`, in codes.
template <u32 LINES, u32 THREADS> struct CodeLines {
    static constexpr u32 EACH = LINES * 8 / THREADS;
    const u8* from;
    u64 row_bytes;
    u32 lines, length;

    __device__ __forceinline__ CodeLines(const u8* w, u32 length, u32 lines)
        : from(w), row_bytes((u64)length / CODE_VALUES * CODE_BYTES), lines(lines), length(length) {}

    /// Reads 64 depths; a missing piece is of zeros.
    __device__ __forceinline__ void read(Codes<EACH>& codes, u32 depth) const {
        const u32 at = depth + threadIdx.x % 8 * 8;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 line = threadIdx.x / 8 + i * (THREADS / 8);
            codes.words[i] = codes.scales[i] = 0;
            if (line >= lines || at >= length) continue;
            const u8* block = from + line * row_bytes + at / CODE_VALUES * CODE_BYTES;
            codes.scales[i] = *block;
            // Four bytes at any address: of the word that begins before them, and of the next one if they reach it.
            const u64 first = (u64)(block + 1 + at % CODE_VALUES / 2);
            const u32 *word = (const u32*)(first & ~3ull), shift = first % 4 * 8;
            codes.words[i] = __funnelshift_r(word[0], word[shift > 0], shift);
        }
    }
    /// Widens what was read into a panel.
    __device__ __forceinline__ void fill(u8* panel, const Codes<EACH>& codes) const {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 line = threadIdx.x / 8 + i * (THREADS / 8), byte = codes.scales[i];
            const u32 one = byte == 255 ? 0x7fc0u : byte == 0 ? 0x40u : byte << 7, scale = one | one << 16;
            uint4 x;
            widen_four(codes.words[i], scale, x.x, x.y);
            widen_four(codes.words[i] >> 16, scale, x.z, x.w);
            *(uint4*)(panel + piece_at(line, threadIdx.x % 8)) = x;
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
    Codes<right.EACH> coming[CODE_STEPS];
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
                right.fill(stage + S::ROWS * 128, coming[i]);
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
