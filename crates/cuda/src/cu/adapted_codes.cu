// The product of a linear layer with its adapters, of few rows, with W in 4-bit codes: see adapted.cuh. Products widen
// codes in registers, so only W's codes are read; the bits are those of the widened matrix.
//
// The product is transposed: W is the left operand, rows of x are columns of the sums. Groups of four warps have 64
// outputs each; one more group makes u of the tile's rows.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Rows of x.
#define ROWS 64
/// Steps of a box of codes, whose lines are 128 bytes; and the boxes there is room for.
#define BOX_STEPS 4
#define BOXES 2
/// Bytes of the table of pairs of numbers: one for each byte of codes and each lane of sixteen.
#define PAIRS_BYTES (256 * 16 * 8)

struct CodeMaps {
    const TensorMap *x, *codes, *a, *b[3];
};

/// 8 x 8 elements of two bytes, transposed: a lane has two neighbours of line lane / 4.
__device__ __forceinline__ u32 transpose8(u32 two) {
    u32 out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(two));
    return out;
}
/// Takes registers from the block's other warps, or leaves them some.
template <bool MORE, u32 N> __device__ __forceinline__ void registers() {
    if constexpr (MORE) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
    }
}
/// Makes writes to shared memory visible to products.
__device__ __forceinline__ void share_with_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// A thread's sums of the outputs `line` and `line` + 8: columns are rows of x.
struct LinesToBf16 {
    bf16* out;
    const bf16* bias;

    __device__ __forceinline__ void lines(const float (&sums)[ROWS / 2], u32 row, u32 line, u32 end, const Layer& of) const {
        const u32 lane = threadIdx.x % WARP, first = line - lane / 4;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const float added = bias && line + 8 * half < end ? to_f32(bias[line + 8 * half]) : 0.0f;
            const u32 own = first + 8 * half + lane % 4 * 2;
#pragma unroll
            for (u32 j = 0; j < ROWS / 8; j++) {
                float x = sums[4 * j + 2 * half], y = sums[4 * j + 2 * half + 1];
                if (bias) x = x + added, y = y + added;
                const u32 two = transpose8(pack_bf16(x, y)), r = row + j * 8 + lane / 4;
                if (r < of.rows && own < end) *(u32*)(out + (u64)r * of.cols + own) = two;
            }
        }
    }
};

/// A tile of 64 rows and GROUPS x 64 outputs. R: room for the rank.
template <u32 GROUPS, u32 R> struct Coded : OwnTile {
    static constexpr u32 OUTPUTS = GROUPS * 64, STAGE_BYTES = (ROWS + R) * 128, BOX_BYTES = OUTPUTS * 128;
    static constexpr u32 MULTIPLIERS = GROUPS * 128;
    const Layer& of;

    __device__ __forceinline__ Coded(const Layer& of) : OwnTile(of, OUTPUTS), of(of) {}
    __device__ __forceinline__ void send_codes(const CodeMaps& maps, Ring boxes) const {
        for (u32 l = 0; l < of.steps; l += BOX_STEPS) {
            boxes.fill(BOX_BYTES);
            copy_box(boxes.at(), maps.codes, l * (STEP / 4), col, boxes.full());
            boxes.next();
        }
    }
    /// Copies x and A, and the block's B at the end.
    __device__ __forceinline__ void send_rows(const CodeMaps& maps, Ring ring, u32 right, u32 right_full) const {
        const TensorMap* b = block == 0 ? maps.b[0] : block == 1 ? maps.b[1] : maps.b[2];
        const u32 first = block == 0 ? of.first[0] : block == 1 ? of.first[1] : of.first[2];
        wait_for_others();
        for (u32 l = 0; l < of.steps; l++) {
            ring.fill(block < 3 ? STAGE_BYTES : ROWS * 128);
            copy_box(ring.at(), maps.x, l * STEP, row, ring.full());
            if (block < 3) copy_box(ring.at() + ROWS * 128, maps.a, l * STEP, block * of.rank, ring.full());
            ring.next();
        }
        if (block < 3) {
            barrier_expect(right_full, OUTPUTS * 128);
            copy_box(right, b, 0, col - first, right_full);
        }
    }

    /// Makes u of the rows, [ROWS, R] at `to` as products read it, and in memory once.
    __device__ __forceinline__ void make_u(Ring ring, float scale, bf16* u, u32 to) const {
        wait_for_others();
        float sums[ROWS / 2];
        Reader reader = {0, false};
        for (u32 l = 0; l < of.steps; l++) {
            barrier_wait(ring.full(), ring.parity);
            hold(sums);
            begin_products();
            multiply_step<false, 4, ROWS>(sums, ring.at() + ROWS * 128, ring.at(), reader.is_begun);
            reader.end_step(ring);
        }
        reader.end(ring);
        hold(sums);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 k = own_row() + 8 * half;
            if (k >= R) continue;
#pragma unroll
            for (u32 e = 0; e < ROWS / 4; e++) {
                const u32 line = e / 2 * 8 + threadIdx.x % 4 * 2 + e % 2;
                const bf16 x = from_f32<bf16>(k < of.rank ? scale * sums[e / 2 * 4 + half * 2 + e % 2] : 0.0f);
                asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + line * 128 + (k / 8 ^ line % 8) * 16 + k % 8 * 2), "h"(x.bits) : "memory");
                if (is_first && k < of.rank && row + line < of.rows) u[((u64)(row + line) * of.blocks + block) * of.rank + k] = x;
            }
        }
        share_with_products();
        meet();
    }
    /// Barrier of the groups that multiply and the one that makes u.
    __device__ __forceinline__ void meet() const { asm volatile("bar.sync 1, %0;" ::"n"(MULTIPLIERS + 128) : "memory"); }

    /// A thread's codes of a step: of each 16, two words of each of its two lines.
    __device__ __forceinline__ static void read_codes(u32 (&codes)[16], u32 line, u32 piece) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            // Lines eight apart have their pieces in the same order.
            const u32 from = line + i % 2 * 8 * 128 + ((piece + i / 4) ^ threadIdx.x % WARP / 4) * 16 + i / 2 % 2 * 8;
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(codes[2 * i]), "=r"(codes[2 * i + 1]) : "r"(from));
        }
    }
    /// The left operands of a step's four products. `pairs`: the table of pairs of numbers.
    __device__ __forceinline__ static void widen(u32 (&left)[4][4], const u32 (&codes)[16], const float (&scale)[2], u32 pairs) {
        const u32 own = threadIdx.x % 4 * 0x11 + 0x40, lane = threadIdx.x % 16 * 8;
#pragma unroll
        for (u32 s = 0; s < 4; s++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                // A byte of each word: the thread's neighbours of either eight.
                const u32 i = s * 4 + half * 2, four = __byte_perm(codes[i], codes[i + 1], own);
                const u32 low = (four << 7 & 0x7f80 | lane) + pairs, high = (four >> 1 & 0x7f80 | lane) + pairs;
                float a, b, c, d;
                asm("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(low));
                asm("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(c), "=f"(d) : "r"(high));
                left[s][half] = pack_bf16(a * scale[half], b * scale[half]);
                left[s][half + 2] = pack_bf16(c * scale[half], d * scale[half]);
            }
    }

    /// Copies the group's 64 lines of scales to shared memory.
    __device__ __forceinline__ void fetch_scales(const float* scales, u32 to) const {
        const u32 first = col + threadIdx.x / 128 * 64, lines = first >= of.cols ? 0 : of.cols - first < 64 ? of.cols - first : 64;
        const float* from = scales + (u64)first * of.steps;
        for (u32 i = threadIdx.x % 128; i < lines * of.steps; i += 128) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + i * 4), "l"(from + i) : "memory");
        }
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(2 + threadIdx.x / 128) : "memory");
    }

    __device__ __forceinline__ void consume(Ring ring, Ring boxes, const float* scales, u32 scales_at, u32 pairs, u32 right,
                                            u32 right_full, u32 of_u, const LinesToBf16& put) const {
        const u32 group = threadIdx.x / 128, own = group * 64 + own_row();
        scales_at += group * 64 * of.steps * 4;
        fetch_scales(scales, scales_at);
        const u32 scale_lines[2] = {scales_at + own_row() * of.steps * 4, scales_at + (own_row() + 8) * of.steps * 4};
        float sums[ROWS / 2];
        u32 left[2][4][4], codes[16];
        Reader reader = {0, false};
        barrier_wait(boxes.full(), boxes.parity);
        read_codes(codes, boxes.at() + own * 128, 0);
        for (u32 first = 0; first < of.steps; first += BOX_STEPS) {
#pragma unroll
            for (u32 l = 0; l < BOX_STEPS; l++) {
                if (first + l < of.steps) {
                    float scale[2];
#pragma unroll
                    for (u32 half = 0; half < 2; half++) {
                        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale[half]) : "r"(scale_lines[half] + (first + l) * 4));
                    }
                    widen(left[l % 2], codes, scale, pairs);
                    // Reads the next step's meanwhile.
                    if (l + 1 < BOX_STEPS) {
                        read_codes(codes, boxes.at() + own * 128, (l + 1) * 2);
                    } else {
                        __syncwarp();
                        if (threadIdx.x % WARP == 0) barrier_arrive(boxes.empty(boxes.stage));
                        boxes.next();
                        if (first + BOX_STEPS < of.steps) {
                            barrier_wait(boxes.full(), boxes.parity);
                            read_codes(codes, boxes.at() + own * 128, 0);
                        }
                    }
                    barrier_wait(ring.full(), ring.parity);
                    hold(sums);
                    begin_products();
#pragma unroll
                    for (u32 s = 0; s < 4; s++) multiply_left(sums, left[l % 2][s], operand(ring.at() + s * 32), reader.is_begun || s > 0);
                    reader.end_step(ring);
                }
            }
        }
        reader.end(ring);
        hold(sums);
        if (block < 3) {
            meet();
            barrier_wait(right_full, 0);
            hold(sums);
            begin_products();
            multiply_step<false, R / 16, ROWS>(sums, right + group * 64 * 128, of_u, true);
            end_products();
            wait_products<0>();
            hold(sums);
        }
        wait_for_others();
        put.lines(sums, row, col + own, end, of);
    }

    __device__ __forceinline__ void run(const CodeMaps& maps, const float* scales, u32 stages, float scale, bf16* u, const LinesToBf16& put) const {
        extern __shared__ __align__(16) u8 dynamic_shared[];
        __shared__ u64 barriers[2 * STAGES_MAX], of_boxes[2 * BOXES], of_right;
        if (threadIdx.x == 0) barrier_init(shared_address(&of_right), 1);
        // Each lane of sixteen has a column of its own: none waits for another's bank.
        const u32 pairs = (shared_address(dynamic_shared) + 1023) / 1024 * 1024;
        for (u32 i = threadIdx.x; i < 256 * 16; i += blockDim.x) {
            const u32 two = i / 16;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(pairs + i * 8), "f"(NF4[two & 15]), "f"(NF4[two >> 4]) : "memory");
        }
        Ring ring = ring_of(barriers, dynamic_shared, stages, STAGE_BYTES, MULTIPLIERS / WARP + (block < 3 ? 4 : 0));
        Ring boxes = ring_of(of_boxes, dynamic_shared, BOXES, BOX_BYTES, MULTIPLIERS / WARP);
        // The pairs, boxes, B, u, the ring, what the product of u reads after A's rows, and scales.
        boxes.buffers = pairs + PAIRS_BYTES;
        const u32 right = boxes.buffers + BOXES * BOX_BYTES, of_u = right + OUTPUTS * 128, right_full = shared_address(&of_right);
        ring.buffers = of_u + ROWS * 128;
        const u32 scales_at = ring.buffers + stages * STAGE_BYTES + (64 - R) * 128;
        if (threadIdx.x < MULTIPLIERS) {
            registers<true, GROUPS == 2 ? 184 : 128>();
            consume(ring, boxes, scales, scales_at, pairs, right, right_full, of_u, put);
        } else if (threadIdx.x < MULTIPLIERS + 128) {
            registers<false, GROUPS == 2 ? 88 : 72>();
            if (block < 3) make_u(ring, scale, u, of_u);
        } else {
            registers<false, 24>();
            if (threadIdx.x == MULTIPLIERS + 128) send_codes(maps, boxes);
            if (threadIdx.x == MULTIPLIERS + 160) send_rows(maps, ring, right, right_full);
        }
    }
};

#endif

#define CODED(GROUPS, R)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 256, 1) adapted_codes_##GROUPS##_##R(                              \
        MAP(x), MAP(codes), MAP(a), MAP(b0), MAP(b1), MAP(b2), LAYER, const float* scales, float scale, bf16* u, const bf16* bias, \
        bf16* out) {                                                                                                               \
        call_others();                                                                                                             \
        ON_HOPPER(OF_LAYER; const CodeMaps maps = {&x, &codes, &a, {&b0, &b1, &b2}};                                               \
                  const Coded<GROUPS, R> coded(of); coded.run(maps, scales, stages, scale, u, LinesToBf16{out, bias});)            \
    }
CODED(3, 32)
CODED(2, 64)
