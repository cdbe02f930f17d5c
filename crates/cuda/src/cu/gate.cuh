// Activations of gates for one element, and their slopes: SwiGLU and GeGLU.

/// e^x to 2 units in the last place, as the CPU's: Cephes' expf on x = n ln 2 + r.
__device__ __forceinline__ float exp_exact(float x) {
    x = x > -110.0f ? x : (x == x ? -110.0f : x);
    x = x < 100.0f ? x : (x == x ? 100.0f : x);
    float n = fma(x, 1.44269504f, 12582912.0f) - 12582912.0f;  // 1.5 x 2^23: adding it rounds to an integer
    float r = fma(n, 2.12194440e-4f, fma(n, -0.693359375f, x));
    float p = fma(1.9875691e-4f, r, 1.3982e-3f);
    p = fma(p, r, 8.333452e-3f);
    p = fma(p, r, 4.1665796e-2f);
    p = fma(p, r, 1.66666657e-1f);
    p = fma(p, r, 0.5f);
    p = fma(p, r * r, r) + 1.0f;
    // 2^n in two factors, because n goes beyond the exponents of f32.
    int whole = (int)n, half = whole / 2;
    return p * as_f32((u32)(half + 127) << 23) * as_f32((u32)(whole - half + 127) << 23);
}

/// z of the activation g / (1 + e^-z): g of silu; 2 sqrt(2/pi) (g + 0.044715 g^3) of gelu by (1 + tanh x) / 2.
__device__ __forceinline__ float exponent(float g, u32 gelu) {
    return gelu ? 2.0f * 0.7978846f * g * fma(0.044715f, g * g, 1.0f) : g;
}

/// 1 / (1 + e^-z). For bf16 the fast instructions: their error of some 1e-6 is far below half a unit of bf16.
template <class T> __device__ __forceinline__ float sigmoid(float z);
template <> __device__ __forceinline__ float sigmoid<float>(float z) { return 1.0f / (1.0f + exp_exact(-z)); }
template <> __device__ __forceinline__ float sigmoid<bf16>(float z) {
    return __fdividef(1.0f, 1.0f + exp2_fast(z * -1.44269504f));
}

/// g / (1 + e^-z); not g times the sigmoid, which is 0 x infinity for a gate of infinity.
template <class T> __device__ __forceinline__ float bent(float g, u32 gelu);
template <> __device__ __forceinline__ float bent<float>(float g, u32 gelu) {
    return g / (1.0f + exp_exact(-exponent(g, gelu)));
}
template <> __device__ __forceinline__ float bent<bf16>(float g, u32 gelu) {
    return __fdividef(g, 1.0f + exp2_fast(exponent(g, gelu) * -1.44269504f));
}

/// Gradients of gate (in place of g) and up (in place of u): d activation = sig (1 + g z' (1 - sig)).
template <class T> __device__ __forceinline__ void slopes(float& g, float& u, float d, u32 gelu) {
    float sig = sigmoid<T>(exponent(g, gelu)), grown = g;
    if (gelu) {
        // Far out the activation is a straight line, and the cube of g may overflow f32.
        float near = fminf(fmaxf(g, -20.0f), 20.0f);
        grown = 2.0f * 0.7978846f * near * fma(3.0f * 0.044715f, near * near, 1.0f);
    }
    float slope = sig * fma(grown, 1.0f - sig, 1.0f);
    float du = d * (g * sig);
    g = d * u * slope;
    u = du;
}
