// The angles of a row are those of its position; rotation_places.cuh has the other kind.

/// Nothing that a kernel takes, and that a shape has of it.
#define PLACE_PARAMS
#define PLACES Places{}

struct Places {
    static __device__ __forceinline__ bool position_ok(u32 position, u32 limit) {
        return index_ok(BAD_POSITION, position, limit);
    }
};

/// Cosines and sines of a row's pairs, of a table [positions, width / 2, 2].
struct Angles {
    const float* at;
    __device__ __forceinline__ Angles(const Places&, const float* table, u32 position, u32, u32 width)
        : at(table + (u64)position * width) {}
    __device__ __forceinline__ float cos(u32 pair) const { return at[2 * pair]; }
    __device__ __forceinline__ float sin(u32 pair) const { return at[2 * pair + 1]; }
    /// Those of eight pairs.
    __device__ __forceinline__ void load(u32 pair, float (&cos)[8], float (&sin)[8]) const {
        const float* from = at + 2 * pair;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float4 x = ((const float4*)from)[i];
            cos[2 * i] = x.x;
            sin[2 * i] = x.y;
            cos[2 * i + 1] = x.z;
            sin[2 * i + 1] = x.w;
        }
    }
};
