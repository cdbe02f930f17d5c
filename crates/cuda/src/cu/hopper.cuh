// Hopper's instructions: copies of boxes, barriers that count bytes, products by four warps together.
//
// Operands in shared memory are panels of rows of 128 bytes (64 elements), whose 16-byte pieces are permuted by the
// row, as by `swizzled<64>` and the copy engine's mode of 128 bytes; eight rows are 1,024 bytes, and panels begin at
// multiples of that. A thread's part of a 64 x N sum is as in attention_tile.cuh: [N / 8][4], the warp's rows lane / 4
// and eight after it, two columns of each.

/// The copy engine's description of a matrix: the driver's CUtensorMap.
struct alignas(64) TensorMap {
    u64 words[16];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives, and expects `bytes` of copies.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Waits for the end of the phase of this parity.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra end;\n"
        "bra again;\n"
        "end:\n"
        "}" ::"r"(barrier), "r"(parity) : "memory");
}
/// Copies a box of a matrix, from column x and row y on, to shared memory; zeros beyond the matrix.
__device__ __forceinline__ void copy_box(u32 to, const TensorMap* map, u32 x, u32 y, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"((u64)map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

/// Describes an operand in shared memory to a product; `panel_bytes`: panel stride, where b has over 64 columns.
__device__ __forceinline__ u64 operand(u32 address, u32 panel_bytes = 16) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(panel_bytes >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

/// Describes an operand of rows of 32 bytes: 16 elements, whose two pieces are permuted by the copy engine's mode of 32 bytes.
__device__ __forceinline__ u64 narrow_operand(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(256 >> 4) << 32 | (u64)3 << 62;
}

#define EIGHT(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

// The operands of a product's sums, as text and as registers, in groups of eight.
#define D0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define D1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define D2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define D3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define D4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define D5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define D6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define D7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define D8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define D9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define D10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define D11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define D12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define D13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define D14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define D15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TEXT8 D0
#define SUMS8(d) EIGHT(d, 0)
#define TEXT12 D0 ", %8, %9, %10, %11"
#define SUMS12(d) EIGHT(d, 0), FOUR(d, 8)
#define TEXT16 D0 ", " D1
#define SUMS16(d) EIGHT(d, 0), EIGHT(d, 8)
#define TEXT20 TEXT16 ", %16, %17, %18, %19"
#define SUMS20(d) SUMS16(d), FOUR(d, 16)
#define TEXT24 D0 ", " D1 ", " D2
#define SUMS24(d) EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16)
#define TEXT32 TEXT24 ", " D3
#define SUMS32(d) SUMS24(d), EIGHT(d, 24)
#define TEXT36 TEXT32 ", %32, %33, %34, %35"
#define SUMS36(d) SUMS32(d), FOUR(d, 32)
#define TEXT40 TEXT32 ", " D4
#define SUMS40(d) SUMS32(d), EIGHT(d, 32)
#define TEXT48 TEXT40 ", " D5
#define SUMS48(d) SUMS40(d), EIGHT(d, 40)
#define TEXT56 TEXT48 ", " D6
#define SUMS56(d) SUMS48(d), EIGHT(d, 48)
#define TEXT64 TEXT56 ", " D7
#define SUMS64(d) SUMS56(d), EIGHT(d, 56)
#define TEXT72 TEXT64 ", " D8
#define SUMS72(d) SUMS64(d), EIGHT(d, 64)
#define TEXT96 TEXT72 ", " D9 ", " D10 ", " D11
#define SUMS96(d) SUMS72(d), EIGHT(d, 72), EIGHT(d, 80), EIGHT(d, 88)
#define TEXT128 TEXT96 ", " D12 ", " D13 ", " D14 ", " D15
#define SUMS128(d) SUMS96(d), EIGHT(d, 96), EIGHT(d, 104), EIGHT(d, 112), EIGHT(d, 120)

// d = a b^T, or d += with `add`: a is 64 x 16 in shared memory, by rows or A_BY_COLUMNS; b has N rows of 16 elements,
// or, BY_COLUMNS, 16 rows of N in panels. Of 2 COUNT columns; the last five give operands' places after the sums.
#define MULTIPLY(COUNT, N, A, B, ADD, COLUMNS, A_COLUMNS)                                                                          \
    template <u32 BY_COLUMNS = 0, u32 A_BY_COLUMNS = 0> __device__ __forceinline__ void multiply(float (&d)[COUNT], u64 a, u64 b, u32 add) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                             \
                     "wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" TEXT##COUNT "}, " A ", " B ", p, 1, 1, "          \
                     A_COLUMNS ", " COLUMNS ";\n}"                                                                                 \
                     : SUMS##COUNT(d)                                                                                              \
                     : "l"(a), "l"(b), "r"(add), "n"(BY_COLUMNS), "n"(A_BY_COLUMNS));                                              \
    }
MULTIPLY(8, "16", "%8", "%9", "%10", "%11", "%12")
MULTIPLY(12, "24", "%12", "%13", "%14", "%15", "%16")
MULTIPLY(16, "32", "%16", "%17", "%18", "%19", "%20")
MULTIPLY(20, "40", "%20", "%21", "%22", "%23", "%24")
MULTIPLY(24, "48", "%24", "%25", "%26", "%27", "%28")
MULTIPLY(32, "64", "%32", "%33", "%34", "%35", "%36")
MULTIPLY(40, "80", "%40", "%41", "%42", "%43", "%44")
MULTIPLY(48, "96", "%48", "%49", "%50", "%51", "%52")
MULTIPLY(56, "112", "%56", "%57", "%58", "%59", "%60")
MULTIPLY(64, "128", "%64", "%65", "%66", "%67", "%68")
MULTIPLY(72, "144", "%72", "%73", "%74", "%75", "%76")
MULTIPLY(96, "192", "%96", "%97", "%98", "%99", "%100")
MULTIPLY(128, "256", "%128", "%129", "%130", "%131", "%132")

/// d += a^T b: a is 16 rows of 64 elements, b 16 rows of 64.
__device__ __forceinline__ void multiply_columns(float (&d)[32], u64 a, u64 b, u32 add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TEXT32 "}, %32, %33, p, 1, 1, 1, 1;\n}"
                 : SUMS32(d)
                 : "l"(a), "l"(b), "r"(add));
}

// The product with a in registers, a thread's words as in `read_rows`. BY_COLUMNS: d = a b, b: 16 rows of N in panels.
#define MULTIPLY_LEFT(NAME, COUNT, N, A, B, ADD, BY_COLUMNS)                                                                       \
    __device__ __forceinline__ void NAME(float (&d)[COUNT], const u32 (&a)[4], u64 b, u32 add) {                                   \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                             \
                     "wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" TEXT##COUNT "}, {" A "}, " B ", p, 1, 1, "         \
                     BY_COLUMNS ";\n}"                                                                                             \
                     : SUMS##COUNT(d)                                                                                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                              \
    }
MULTIPLY_LEFT(multiply_left, 16, "32", "%16, %17, %18, %19", "%20", "%21", "0")
MULTIPLY_LEFT(multiply_left, 24, "48", "%24, %25, %26, %27", "%28", "%29", "0")
MULTIPLY_LEFT(multiply_left, 32, "64", "%32, %33, %34, %35", "%36", "%37", "0")
MULTIPLY_LEFT(multiply_left, 40, "80", "%40, %41, %42, %43", "%44", "%45", "0")
MULTIPLY_LEFT(multiply_left, 48, "96", "%48, %49, %50, %51", "%52", "%53", "0")
MULTIPLY_LEFT(multiply_left, 56, "112", "%56, %57, %58, %59", "%60", "%61", "0")
MULTIPLY_LEFT(multiply_left, 64, "128", "%64, %65, %66, %67", "%68", "%69", "0")
MULTIPLY_LEFT(multiply_left, 72, "144", "%72, %73, %74, %75", "%76", "%77", "0")
MULTIPLY_LEFT(multiply_left, 96, "192", "%96, %97, %98, %99", "%100", "%101", "0")
MULTIPLY_LEFT(multiply_left_by_columns, 32, "64", "%32, %33, %34, %35", "%36", "%37", "1")
MULTIPLY_LEFT(multiply_left_by_columns, 64, "128", "%64, %65, %66, %67", "%68", "%69", "1")

/// Before products: makes writes to registers visible to them.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Makes the products since the last call a group.
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most N groups are under way.
template <int N> __device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/// Keeps the compiler from moving a thread's sums across products.
template <int N> __device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/// Four words of each of four neighbouring lanes, transposed: lane i gets word i of each.
__device__ __forceinline__ void transpose4(u32 (&x)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    // Lanes exchange words 0 and 1, and 2 and 3, in pairs; then pairs of words, two lanes apart.
    u32 a = __shfl_xor_sync(ALL_LANES, odd ? x[0] : x[1], 1), b = __shfl_xor_sync(ALL_LANES, odd ? x[2] : x[3], 1);
    const u32 y[4] = {odd ? a : x[0], odd ? x[1] : a, odd ? b : x[2], odd ? x[3] : b};
    a = __shfl_xor_sync(ALL_LANES, high ? y[0] : y[2], 2);
    b = __shfl_xor_sync(ALL_LANES, high ? y[1] : y[3], 2);
    x[0] = high ? a : y[0];
    x[1] = high ? b : y[1];
    x[2] = high ? y[2] : a;
    x[3] = high ? y[3] : b;
}
#define ON_HOPPER(...) __VA_ARGS__
#else
#define ON_HOPPER(...)
#endif
