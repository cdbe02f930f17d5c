// Joins the units of a row into its result, by their weights and sums, in one way everywhere; see attention.cu.

/// Largest score, times log2 e, and sum of weights relative to it.
struct Sum {
    float max, sum;
};

/// Adds `with` to `to`: their outs get the factors `keep` and `add`.
__device__ __forceinline__ void join(Sum& to, const Sum& with, float& keep, float& add) {
    float max = fmaxf(to.max, with.max);
    keep = exp2_fast(to.max - max);
    add = exp2_fast(with.max - max);
    to.sum = fma(to.sum, keep, with.sum * add);
    to.max = max;
}
__device__ __forceinline__ float joined(float to, float keep, float with, float add) {
    return fma(to, keep, with * add);
}

/// Joins the chunk that a row begins with to the sink that its softmax begins with, a sum of 1 and an output of 0; the
/// chunk's out gets the factor that is returned.
__device__ __forceinline__ float join_sink(Sum& first, bf16 sink) {
    Sum total = {to_f32(sink) * LOG2_E, 1.0f};
    float keep, add;
    join(total, first, keep, add);
    first = total;
    return add;
}

/// Log-sum-exp of the scaled scores.
__device__ __forceinline__ float log_sum_exp(const Sum& s) { return fma(s.max, LN_2, logf(s.sum)); }

/// Weights of row lane / 4 + 8 ROW of a unit; its keys from `from` on and below `seen` count. `scale` includes log2 e.
template <int ROW>
__device__ __forceinline__ Sum unit_weights(float (&s)[2][4][4], u32 from, u32 seen, float scale) {
    const u32 column = 2 * (threadIdx.x % 4);
    if (seen - from < UNIT) {
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            float& x = s[i / 8][i / 2 % 4][2 * ROW + i % 2];
            const u32 key = i / 2 * 8 + column + i % 2;
            if (key >= seen || key < from) x = MINUS_INFINITY;
        }
    }
    float top[2] = {MINUS_INFINITY, MINUS_INFINITY}, sum[2][2] = {};
#pragma unroll
    for (u32 i = 0; i < 16; i++) top[i % 2] = fmaxf(top[i % 2], s[i / 8][i / 2 % 4][2 * ROW + i % 2]);
    const float max = row_max(fmaxf(top[0], top[1])) * scale;
    const float shift = seen > from ? max : 0.0f;
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        float& x = s[i / 8][i / 2 % 4][2 * ROW + i % 2];
        x = exp2_fast(fma(x, scale, -shift));
        sum[i / 8][i % 2] = sum[i / 8][i % 2] + x;
    }
    return {max, row_sum((sum[0][0] + sum[0][1]) + (sum[1][0] + sum[1][1]))};
}

/// Keys of a unit that a row with `keys` keys sees, or that come before the first one, if `keys` do.
__device__ __forceinline__ u32 seen_of(u32 keys, u32 unit) {
    return keys > unit * UNIT ? min(keys - unit * UNIT, (u32)UNIT) : 0;
}

/// Joins the chunks' parts of decoded rows: a thread has four elements of a row. SUNK: with the heads' `sinks`.
template <int D, bool SUNK = false>
__device__ __forceinline__ void join_parts(const float* parts, const u32* segments, bf16* out, float* lse,
                                           const Shape& shape, u32 chunks, const bf16* sinks = nullptr) {
    const u64 item = (u64)blockIdx.x * blockDim.x + threadIdx.x, pairs = (u64)shape.segments * shape.heads;
    const u64 pair = item / (D / 4);
    const u32 at = item % (D / 4) * 4;
    if (pair >= pairs) return;
    const Segment segment = segment_at(segments, pair / shape.heads);
    if (segment.rows == 0 || !segment_ok(segment, shape)) return;
    const u32 mine = segment.first_position / ATTENTION_CHUNK + 1;
    const u32 first = shape.from(segment.first_position + 1) / ATTENTION_CHUNK;
    const float4* from = (const float4*)(parts + pair * chunks * D + at);
    const Sum* sums = (const Sum*)(parts + pairs * chunks * D) + pair * chunks;
    float4 o = from[first * (D / 4)];
    Sum sum = sums[first];
    if constexpr (SUNK) {
        const float add = join_sink(sum, sinks[pair % shape.heads]);
        o = make_float4(o.x * add, o.y * add, o.z * add, o.w * add);
    }
#pragma unroll 4
    for (u32 chunk = first + 1; chunk < mine; chunk++) {
        float keep, add;
        join(sum, sums[chunk], keep, add);
        const float4 with = from[chunk * (D / 4)];
        o = make_float4(joined(o.x, keep, with.x, add), joined(o.y, keep, with.y, add),
                        joined(o.z, keep, with.z, add), joined(o.w, keep, with.w, add));
    }
    const float inverse = 1.0f / sum.sum;
    const u64 place = (u64)segment.first_row * shape.heads + pair % shape.heads;
    *(uint2*)(out + place * D + at) =
        make_uint2(pack_bf16(o.x * inverse, o.y * inverse), pack_bf16(o.z * inverse, o.w * inverse));
    if (lse && at == 0) lse[place] = log_sum_exp(sum);
}
