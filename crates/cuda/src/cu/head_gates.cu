// Output gates of attention: a row has each head's query followed by its gate, then keys and values.
//
// Legend: a query heads of d elements, kv = 2 k d elements of keys and values. A thread has 8 elements (`wide`) or 1.

struct HeadRow {
    u32 heads, dim, kv, wide;

    /// Elements of a row with gates, and of one without.
    __device__ __forceinline__ u32 gated() const { return 2 * heads * dim + kv; }
    __device__ __forceinline__ u32 plain() const { return heads * dim + kv; }
    /// Place, in a row with gates, of element c of a row without.
    __device__ __forceinline__ u32 place(u32 c) const { return c < heads * dim ? c / dim * 2 * dim + c % dim : c + heads * dim; }
    /// Place of the gate of element c of the heads.
    __device__ __forceinline__ u32 gate(u32 c) const { return c / dim * 2 * dim + dim + c % dim; }
    __device__ __forceinline__ u32 each() const { return wide ? 8 : 1; }
};

/// Eight elements, or one.
template <class T>
__device__ __forceinline__ void take(const HeadRow& is, const T* p, float (&x)[8]) {
    if (is.wide) return load8(p, x);
    x[0] = to_f32(p[0]);
}
template <class T>
__device__ __forceinline__ void put(const HeadRow& is, T* p, const float (&x)[8]) {
    if (is.wide) return store8(p, x);
    p[0] = from_f32<T>(x[0]);
}

/// Copies q, k and v out of rows with gates; or back (`joins`), where gates are left as they are.
template <class T>
__device__ __forceinline__ void move_gated(const HeadRow& is, const T* __restrict__ from, T* __restrict__ to, u32 items, bool joins) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const u32 width = is.plain() / is.each(), row = i / width, c = (i - row * width) * is.each();
    const u64 plain = (u64)row * is.plain() + c, gated = (u64)row * is.gated() + is.place(c);
    float x[8];
    take(is, from + (joins ? plain : gated), x);
    put(is, to + (joins ? gated : plain), x);
}

template <class T>
__device__ __forceinline__ void gate_heads(const HeadRow& is, const T* __restrict__ x, const T* __restrict__ attn, T* __restrict__ out,
                                           u32 items) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const u32 width = is.heads * is.dim / is.each(), row = i / width, c = (i - row * width) * is.each();
    float gate[8] = {}, y[8] = {};
    take(is, x + (u64)row * is.gated() + is.gate(c), gate);
    take(is, attn + (u64)i * is.each(), y);
#pragma unroll
    for (u32 e = 0; e < 8; e++) y[e] = y[e] * sigmoid<T>(gate[e]);
    put(is, out + (u64)i * is.each(), y);
}

/// Gradients by attention's output, over that of the gated one, and by gates; and the gated output again.
template <class T>
__device__ __forceinline__ void gate_heads_backward(const HeadRow& is, const T* __restrict__ x, const T* attn, T* d, T* __restrict__ dx,
                                                    T* out, u32 items) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const u32 width = is.heads * is.dim / is.each(), row = i / width, c = (i - row * width) * is.each();
    const u64 gate_at = (u64)row * is.gated() + is.gate(c), at = (u64)i * is.each();
    float gate[8] = {}, y[8] = {}, dy[8] = {}, d_gate[8];
    take(is, x + gate_at, gate);
    take(is, attn + at, y);
    take(is, d + at, dy);
#pragma unroll
    for (u32 e = 0; e < 8; e++) {
        const float sig = sigmoid<T>(gate[e]);
        d_gate[e] = dy[e] * y[e] * sig * (1.0f - sig);
        dy[e] = dy[e] * sig;
        y[e] = y[e] * sig;
    }
    put(is, d + at, dy);
    put(is, dx + gate_at, d_gate);
    if (out) put(is, out + at, y);
}

#define HEAD_GATES(T)                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                                      \
        split_gates_##T(const T* x, T* out, u32 heads, u32 dim, u32 kv, u32 wide, u32 items) {                                             \
        begin();                                                                                                                           \
        move_gated<T>({heads, dim, kv, wide}, x, out, items, false);                                                                       \
    }                                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                                      \
        join_gates_##T(const T* d_qkv, T* dx, u32 heads, u32 dim, u32 kv, u32 wide, u32 items) {                                           \
        begin();                                                                                                                           \
        move_gated<T>({heads, dim, kv, wide}, d_qkv, dx, items, true);                                                                     \
    }                                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                                      \
        gate_heads_##T(const T* x, const T* attn, T* out, u32 heads, u32 dim, u32 kv, u32 wide, u32 items) {                               \
        begin();                                                                                                                           \
        gate_heads<T>({heads, dim, kv, wide}, x, attn, out, items);                                                                        \
    }                                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                                      \
        gate_heads_backward_##T(const T* x, const T* attn, T* d, T* dx, T* out, u32 heads, u32 dim, u32 kv, u32 wide, u32 items) {         \
        begin();                                                                                                                           \
        gate_heads_backward<T>({heads, dim, kv, wide}, x, attn, d, dx, out, items);                                                        \
    }
HEAD_GATES(float)
HEAD_GATES(bf16)
