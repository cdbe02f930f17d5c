// Inputs of the gated delta rule and their gradients: q, k, v (convolution of past rows, silu, head norms), g, beta.
//
// A warp has a head of a row, four elements a lane. Blocks of eight warps have eight heads of some rows, row by row.

#define CONV_TAPS 4
/// Warps of a block.
#define INPUT_WARPS 8
/// Rows whose segments a block looks up at a time.
#define LOOKED_UP 32
/// Rows whose inputs are read ahead.
#define AHEAD 4
#define NORM_EPS 1e-6f
#define NO_SEGMENT 0xffffffffu

/// Inputs of rows: those of a pass, and what is kept of the rows before it.
template <class T>
struct Inputs {
    const T *x, *tails;
    const u32 *places, *segments;
    DeltaHeads heads;
    u32 rows, segments_count, places_count, has_parents, wide;

    /// Four elements of the input `offset` rows after (before, if negative) the first row of a segment.
    __device__ __forceinline__ void at(const Segment& is, u32 s, int offset, u32 channel, float (&to)[4]) const {
        to[0] = to[1] = to[2] = to[3] = 0.0f;
        if (offset >= 0) return take4(x + (u64)(is.first + offset) * heads.input_width() + channel, wide, to);
        if (has_parents && is.parent != NO_PARENT) {
            const int position = (int)is.position + offset;
            if (position < 0 || !index_ok(BAD_ROW, is.parent + position, rows)) return;
            return take4(x + (u64)(is.parent + position) * heads.input_width() + channel, wide, to);
        }
        if (!tails) return;
        const u32 from = places[s * 2];
        if (from == NO_STATE || !index_ok(BAD_ROW, from, places_count)) return;
        load4(tails + ((u64)from * (CONV_TAPS - 1) + (CONV_TAPS - 1 + offset)) * heads.conv_width() + channel, to);
    }

    /// The inputs of the three rows before row `i` of a segment, to places from `first`.
    template <u32 N>
    __device__ __forceinline__ void before(const Segment& is, u32 s, u32 i, u32 channel, float (&window)[N][4], u32 first) const {
#pragma unroll
        for (u32 j = 0; j < CONV_TAPS - 1; j++) at(is, s, (int)i - (CONV_TAPS - 1) + (int)j, channel, window[first + j]);
    }
};

/// Finds the segments of up to `LOOKED_UP` rows. All threads of a block call it.
__device__ __forceinline__ void look_up(const u32* __restrict__ segments, u32 count, u32 rows, u32 first, u32 end, u32 (&owners)[LOOKED_UP]) {
    __syncthreads();
    if (threadIdx.x < LOOKED_UP) owners[threadIdx.x] = NO_SEGMENT;
    __syncthreads();
    for (u32 s = threadIdx.x; s < count; s += blockDim.x) {
        const Segment is = segment_at(segments, s, rows);
        for (u32 row = max(first, is.first); row < min(end, is.first + is.rows); row++) owners[row - first] = s;
    }
    __syncthreads();
}

/// A warp's part of a row of q, k and v: a head of them, and how it is normalised.
struct Unit {
    u32 channel, width;
    bool has_norm, is_gates, is_none;
    float scale;
};

__device__ __forceinline__ Unit unit_of(const DeltaHeads& h, u32 unit) {
    const u32 keys = 2 * h.key_heads;
    Unit is = {unit * h.key_dim, h.key_dim, true, unit == keys + h.value_heads, unit > keys + h.value_heads, 1.0f};
    if (unit < h.key_heads) is.scale = 1.0f / sqrtf((float)h.key_dim);
    if (unit >= keys) is.channel = keys * h.key_dim + (unit - keys) * h.value_dim, is.width = h.value_dim, is.has_norm = false;
    return is;
}

template <class T>
__device__ __forceinline__ void load_taps(const T* conv, u32 channel, float (&taps)[4][CONV_TAPS]) {
#pragma unroll
    for (u32 e = 0; e < 4; e++) load4(conv + (u64)(channel + e) * CONV_TAPS, taps[e]);
}

/// The convolution of a window of inputs, oldest first, from place `first`.
template <u32 N>
__device__ __forceinline__ float convolved(const float (&taps)[4][CONV_TAPS], const float (&window)[N][4], u32 first, u32 e) {
    float sum = taps[e][0] * window[first][e];
#pragma unroll
    for (u32 j = 1; j < CONV_TAPS; j++) sum = fma(taps[e][j], window[first + j][e], sum);
    return sum;
}

__device__ __forceinline__ float sum_squares(const float (&x)[4]) {
    return warp_sum(fma(x[3], x[3], fma(x[2], x[2], fma(x[1], x[1], x[0] * x[0]))));
}

__device__ __forceinline__ float sum_products(const float (&x)[4], const float (&y)[4]) {
    return warp_sum(fma(x[3], y[3], fma(x[2], y[2], fma(x[1], y[1], x[0] * y[0]))));
}

/// log(1 + e^x).
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(exp_f32(x)); }

template <class T>
struct GateWeights {
    const T *decay, *bias;
};

/// g and beta of rows `first` to `end`, a lane a head.
template <class T>
__device__ __forceinline__ void row_gates(const Inputs<T>& in, const GateWeights<T>& w, u32 first, u32 end, float* __restrict__ gates) {
    const u32 heads = in.heads.value_heads, at = in.heads.conv_width() + in.heads.value_width();
    for (u32 head = threadIdx.x % WARP; head < heads; head += WARP) {
        const float grows = exp_f32(to_f32(w.decay[head])), bias = to_f32(w.bias[head]);
#pragma unroll 4
        for (u32 row = first; row < end; row++) {
            const T* x = in.x + (u64)row * in.heads.input_width() + at + head;
            gates[(u64)row * 2 * heads + head] = -grows * softplus(to_f32(x[heads]) + bias);
            gates[((u64)row * 2 + 1) * heads + head] = sigmoid<float>(to_f32(x[0]));
        }
    }
}

/// A warp's work on its head of some rows.
template <class T>
struct HeadRows {
    const Inputs<T>& in;
    Unit unit;
    u32 channel, segment;
    bool is_active;
    Segment is;
    float taps[4][CONV_TAPS];
    // Inputs of the three rows before those that are under way, then of these.
    float window[CONV_TAPS - 1 + AHEAD][4];

    __device__ __forceinline__ HeadRows(const Inputs<T>& in, const T* conv) : in(in), segment(NO_SEGMENT), is(), taps(), window() {
        unit = unit_of(in.heads, blockIdx.x * INPUT_WARPS + threadIdx.x / WARP);
        is_active = !unit.is_none && !unit.is_gates && threadIdx.x % WARP * 4 < unit.width;
        channel = is_active ? unit.channel + threadIdx.x % WARP * 4 : 0;
        if (is_active) load_taps(conv, channel, taps);
    }

    __device__ __forceinline__ void load(u32 row, u32 end) {
        if (!is_active) return;
        const T* x = in.x + (u64)row * in.heads.input_width() + channel;
        // One branch for all loads, so that all are under way before the first is waited for.
        if (in.wide && row + AHEAD <= end) {
#pragma unroll
            for (u32 n = 0; n < AHEAD; n++) load4(x + (u64)n * in.heads.input_width(), window[CONV_TAPS - 1 + n]);
            return;
        }
#pragma unroll
        for (u32 n = 0; n < AHEAD; n++) {
            if (row + n < end) take4(x + (u64)n * in.heads.input_width(), in.wide, window[CONV_TAPS - 1 + n]);
        }
    }
    /// Reads what precedes a row of another segment than the row before. False if it is in none.
    __device__ __forceinline__ bool begin_row(u32 n, u32 row, u32 s) {
        if (s == NO_SEGMENT) return false;
        if (s == segment) return true;
        segment = s, is = segment_at(in.segments, s, in.rows);
        if (is_active) in.before(is, s, row - is.first, channel, window, n);
        return true;
    }
    __device__ __forceinline__ void end_rows() {
#pragma unroll
        for (u32 j = 0; j + 1 < CONV_TAPS; j++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) window[j][e] = window[AHEAD + j][e];
        }
    }
};

/// True if the rows are all in the current segment, so that none need be looked up.
__device__ __forceinline__ bool go_on(const u32* owners, u32 first, u32 end, u32 row, u32 segment) {
    if (row + AHEAD > end) return false;
    bool same = true;
#pragma unroll
    for (u32 n = 0; n < AHEAD; n++) same &= owners[(row - first) % LOOKED_UP + n] == segment;
    return same;
}

/// grid: (heads / 8, rows / rows_each). With `new_tails` each row is a segment, and leaves its tail.
template <class T>
__device__ __forceinline__ void delta_inputs(const Inputs<T>& in, const T* conv, const GateWeights<T>& w, T* __restrict__ qkv,
                                             float* __restrict__ gates, T* new_tails, u32 rows_each) {
    __shared__ u32 owners[LOOKED_UP];
    const u32 first = blockIdx.y * rows_each, end = min(first + rows_each, in.rows), width = in.heads.conv_width();
    HeadRows<T> head(in, conv);
    const auto compute = [&](u32 n, u32 row) {
        float c[4];
#pragma unroll
        for (u32 e = 0; e < 4; e++) c[e] = bent<T>(convolved(head.taps, head.window, n, e), 0);
        if (head.unit.has_norm) {
            const float by = 1.0f / sqrtf(sum_squares(c) + NORM_EPS);
#pragma unroll
            for (u32 e = 0; e < 4; e++) c[e] = c[e] * by * head.unit.scale;
        }
        if (head.is_active) store4(qkv + (u64)row * width + head.channel, c);
    };
    const auto leave_tail = [&](u32 n) {
        const u32 to = in.places[head.segment * 2 + 1];
        if (!head.is_active || to == NO_STATE || !index_ok(BAD_ROW, to, in.places_count)) return;
#pragma unroll
        for (u32 j = 0; j + 1 < CONV_TAPS; j++) {
            store4(new_tails + ((u64)to * (CONV_TAPS - 1) + j) * width + head.channel, head.window[n + 1 + j]);
        }
    };
    for (u32 row = first; row < end; row += AHEAD) {
        if ((row - first) % LOOKED_UP == 0) look_up(in.segments, in.segments_count, in.rows, row, min(row + LOOKED_UP, end), owners);
        if (head.unit.is_none || head.unit.is_gates) continue;
        head.load(row, end);
        if (go_on(owners, first, end, row, head.segment)) {
#pragma unroll
            for (u32 n = 0; n < AHEAD; n++) compute(n, row + n);
        } else {
#pragma unroll
            for (u32 n = 0; n < AHEAD; n++) {
                if (row + n >= end || !head.begin_row(n, row + n, owners[(row - first) % LOOKED_UP + n])) continue;
                compute(n, row + n);
                if (new_tails) leave_tail(n);
            }
        }
        head.end_rows();
    }
    if (head.unit.is_gates) row_gates(in, w, first, end, gates);
}

/// The tails that segments leave, which may be those that they begin with. grid: (C / 1,024, S).
template <class T>
__device__ __forceinline__ void delta_tails(const Inputs<T>& in, T* tails) {
    const u32 s = blockIdx.y, channel = (blockIdx.x * blockDim.x + threadIdx.x) * 4, width = in.heads.conv_width();
    const Segment is = segment_at(in.segments, s, in.rows);
    const u32 to = in.places[s * 2 + 1];
    if (channel >= width || to == NO_STATE || !index_ok(BAD_ROW, to, in.places_count)) return;
    float window[CONV_TAPS - 1][4];
    in.before(is, s, is.rows, channel, window, 0);
#pragma unroll
    for (u32 j = 0; j + 1 < CONV_TAPS; j++) store4(tails + ((u64)to * (CONV_TAPS - 1) + j) * width + channel, window[j]);
}

#define INPUTS(T, tails, places, places_count, has_parents)                                                                                \
    {x, tails, places, segments, {key_heads, value_heads, key_dim, value_dim}, rows, segments_count, places_count, has_parents, wide}
#define DELTA_INPUTS(T)                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                                      \
        delta_inputs_##T(const T* x, const T* tails, const u32* places, const u32* segments, const T* conv, const T* decay, const T* bias, \
                         T* qkv, float* gates, T* new_tails, u32 key_heads, u32 value_heads, u32 key_dim, u32 value_dim, u32 rows,         \
                         u32 segments_count, u32 places_count, u32 has_parents, u32 wide, u32 rows_each) {                                 \
        begin();                                                                                                                           \
        const Inputs<T> in = INPUTS(T, tails, places, places_count, has_parents);                                                          \
        delta_inputs<T>(in, conv, {decay, bias}, qkv, gates, new_tails, rows_each);                                                        \
    }                                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                                      \
        delta_tails_##T(const T* x, T* tails, const u32* places, const u32* segments, u32 key_heads, u32 value_heads, u32 key_dim,         \
                        u32 value_dim, u32 rows, u32 segments_count, u32 places_count, u32 has_parents, u32 wide) {                        \
        begin();                                                                                                                           \
        const Inputs<T> in = INPUTS(T, tails, places, places_count, has_parents);                                                          \
        delta_tails<T>(in, tails);                                                                                                         \
    }
DELTA_INPUTS(float)
DELTA_INPUTS(bf16)

// ---- gradients -----------------------------------------------------------------------------------------------------

/// Gradients by a and b of rows `first` to `end`, and sums of those of decay and bias.
template <class T>
__device__ __forceinline__ void row_gates_backward(const Inputs<T>& in, const GateWeights<T>& w, u32 first, u32 end,
                                                   const float* __restrict__ d_gates, T* __restrict__ dx, float* sums) {
    const u32 heads = in.heads.value_heads, at = in.heads.conv_width() + in.heads.value_width();
    for (u32 head = threadIdx.x % WARP; head < heads; head += WARP) {
        const float grows = exp_f32(to_f32(w.decay[head])), bias = to_f32(w.bias[head]);
        float of_decay = 0.0f, of_bias = 0.0f;
#pragma unroll 4
        for (u32 row = first; row < end; row++) {
            const u64 place = (u64)row * in.heads.input_width() + at + head;
            const float a = to_f32(in.x[place + heads]) + bias, beta = sigmoid<float>(to_f32(in.x[place]));
            const float dg = d_gates[(u64)row * 2 * heads + head], d_beta = d_gates[((u64)row * 2 + 1) * heads + head];
            const float da = dg * -grows * sigmoid<float>(a);
            dx[place] = from_f32<T>(d_beta * beta * (1.0f - beta));
            dx[place + heads] = from_f32<T>(da);
            of_decay = fma(dg, -grows * softplus(a), of_decay);
            of_bias = of_bias + da;
        }
        if (sums) sums[head] = of_decay, sums[heads + head] = of_bias;
    }
}

/// Gradients by the inputs of silu, over those of q, k and v; and for each block's rows sums of the gradients of the
/// convolution [C, 4], then of decay and bias, padded to four. grid: (heads / 8, rows / rows_each).
template <class T>
__device__ __forceinline__ void delta_inputs_backward(const Inputs<T>& in, const T* conv, const GateWeights<T>& w, float* d_qkv,
                                                      const float* __restrict__ d_gates, T* __restrict__ dx, float* partials, u32 rows_each) {
    __shared__ u32 owners[LOOKED_UP];
    const u32 first = blockIdx.y * rows_each, end = min(first + rows_each, in.rows), width = in.heads.conv_width();
    HeadRows<T> head(in, conv);
    if (partials) partials += (u64)blockIdx.y * tiles_of(width * CONV_TAPS + 2 * in.heads.value_heads, 4) * 4;
    float sums[4][CONV_TAPS] = {}, d[AHEAD][4] = {};
    const auto compute = [&](u32 n, u32 row) {
        float sig[4], c[4], y[4];
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            c[e] = convolved(head.taps, head.window, n, e);
            sig[e] = sigmoid<T>(c[e]);
            y[e] = bent<T>(c[e], 0);
        }
        if (head.unit.has_norm) {
            const float by = 1.0f / sqrtf(sum_squares(y) + NORM_EPS);
#pragma unroll
            for (u32 e = 0; e < 4; e++) y[e] = y[e] * by, d[n][e] = d[n][e] * head.unit.scale;
            const float dot = sum_products(y, d[n]);
#pragma unroll
            for (u32 e = 0; e < 4; e++) d[n][e] = by * fma(-y[e], dot, d[n][e]);
        }
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            d[n][e] = d[n][e] * sig[e] * fma(c[e], 1.0f - sig[e], 1.0f);
#pragma unroll
            for (u32 j = 0; j < CONV_TAPS; j++) sums[e][j] = fma(d[n][e], head.window[n + j][e], sums[e][j]);
        }
        if (head.is_active) store4(d_qkv + (u64)row * width + head.channel, d[n]);
    };
    for (u32 row = first; row < end; row += AHEAD) {
        if ((row - first) % LOOKED_UP == 0) look_up(in.segments, in.segments_count, in.rows, row, min(row + LOOKED_UP, end), owners);
        if (head.unit.is_none || head.unit.is_gates) continue;
        head.load(row, end);
#pragma unroll
        for (u32 n = 0; n < AHEAD; n++) {
            if (row + n < end && head.is_active) load4(d_qkv + (u64)(row + n) * width + head.channel, d[n]);
        }
        if (go_on(owners, first, end, row, head.segment)) {
#pragma unroll
            for (u32 n = 0; n < AHEAD; n++) compute(n, row + n);
        } else {
#pragma unroll
            for (u32 n = 0; n < AHEAD; n++) {
                if (row + n >= end || !head.begin_row(n, row + n, owners[(row - first) % LOOKED_UP + n])) continue;
                compute(n, row + n);
            }
        }
        head.end_rows();
    }
    if (head.unit.is_gates) row_gates_backward(in, w, first, end, d_gates, dx, partials ? partials + width * CONV_TAPS : nullptr);
    if (!partials || !head.is_active) return;
#pragma unroll
    for (u32 e = 0; e < 4; e++) store4(partials + (u64)(head.channel + e) * CONV_TAPS, sums[e]);
}

/// Adds to the gradient of an input of row `i` the parts of children's rows, in order.
template <class T>
__device__ __forceinline__ void add_children(const Inputs<T>& in, const Segment& is, u32 i, const float (&taps)[4][CONV_TAPS],
                                             const float* __restrict__ dc, u32 channel, float (&sum)[4]) {
    const u32 lane = threadIdx.x % WARP;
    for (u32 from = 0; from < in.segments_count; from += WARP) {
        u32 left = __ballot_sync(ALL_LANES, from + lane < in.segments_count && is_child(in.segments, from + lane, is));
        for (; left; left &= left - 1) {
            const Segment child = segment_at(in.segments, from + __ffs(left) - 1, in.rows);
#pragma unroll
            for (u32 after = 1; after < CONV_TAPS; after++) {
                if (i + after < is.rows || i + after - is.rows >= child.rows) continue;
                float d[4];
                load4(dc + (u64)(child.first + i + after - is.rows) * in.heads.conv_width() + channel, d);
#pragma unroll
                for (u32 e = 0; e < 4; e++) sum[e] = fma(taps[e][CONV_TAPS - 1 - after], d[e], sum[e]);
            }
        }
    }
}

/// Gradients by the inputs of q, k and v, which the next three rows read too. grid: (C / 1,024, rows / rows_each).
template <class T>
__device__ __forceinline__ void delta_convolve_backward(const Inputs<T>& in, const T* conv, const float* __restrict__ dc, T* __restrict__ dx,
                                                        u32 rows_each) {
    __shared__ u32 owners[LOOKED_UP];
    const u32 first = blockIdx.y * rows_each, end = min(first + rows_each, in.rows), width = in.heads.conv_width();
    const bool is_active = (blockIdx.x * blockDim.x + threadIdx.x) * 4 < width;
    // Threads beyond the last channel do the work of the first, which is not used: warps stay together.
    const u32 channel = is_active ? (blockIdx.x * blockDim.x + threadIdx.x) * 4 : 0;
    float taps[4][CONV_TAPS], window[CONV_TAPS][4] = {};
    load_taps(conv, channel, taps);
    look_up(in.segments, in.segments_count, in.rows, first, end, owners);
    u32 segment = NO_SEGMENT;
    Segment is = {};
#pragma unroll 4
    for (u32 row = end; row-- > first;) {
        const u32 s = owners[row - first];
        if (s == NO_SEGMENT) continue;
        const bool is_new = s != segment;
        if (is_new) segment = s, is = segment_at(in.segments, s, in.rows);
        const u32 i = row - is.first;
#pragma unroll
        for (u32 after = CONV_TAPS - 1; after > 0; after--) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) window[after][e] = is_new ? 0.0f : window[after - 1][e];
            if (is_new && i + after < is.rows) load4(dc + (u64)(row + after) * width + channel, window[after]);
        }
        load4(dc + (u64)row * width + channel, window[0]);
        float sum[4];
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            sum[e] = taps[e][CONV_TAPS - 1] * window[0][e];
#pragma unroll
            for (u32 after = 1; after < CONV_TAPS; after++) sum[e] = fma(taps[e][CONV_TAPS - 1 - after], window[after][e], sum[e]);
        }
        if (is.parent == NO_PARENT && i + CONV_TAPS > is.rows) add_children(in, is, i, taps, dc, channel, sum);
        if (is_active) put4(dx + (u64)row * in.heads.input_width() + channel, in.wide, sum);
    }
}

#define DELTA_INPUTS_BACKWARD(T)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(256)                                                                                      \
        delta_inputs_backward_##T(const T* x, const u32* segments, const T* conv, const T* decay, const T* bias, float* d_qkv,             \
                                  const float* d_gates, T* dx, float* partials, u32 key_heads, u32 value_heads, u32 key_dim,               \
                                  u32 value_dim, u32 rows, u32 segments_count, u32 wide, u32 rows_each) {                                  \
        begin();                                                                                                                           \
        const Inputs<T> in = INPUTS(T, nullptr, nullptr, 0, 1);                                                                            \
        delta_inputs_backward<T>(in, conv, {decay, bias}, d_qkv, d_gates, dx, partials, rows_each);                                        \
    }                                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                                      \
        delta_convolve_backward_##T(const T* x, const u32* segments, const T* conv, const float* dc, T* dx, u32 key_heads,                 \
                                    u32 value_heads, u32 key_dim, u32 value_dim, u32 rows, u32 segments_count, u32 wide, u32 rows_each) {  \
        begin();                                                                                                                           \
        const Inputs<T> in = INPUTS(T, nullptr, nullptr, 0, 1);                                                                            \
        delta_convolve_backward<T>(in, conv, dc, dx, rows_each);                                                                           \
    }
DELTA_INPUTS_BACKWARD(float)
DELTA_INPUTS_BACKWARD(bf16)
