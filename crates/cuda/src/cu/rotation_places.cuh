// The angles of a row are chosen by its place, three numbers, of which each pair takes one; rotation_position.cuh has
// the other kind. A pair's angles are the same table's, so equal numbers give the bits of one position.

#define PLACE_PARAMS , const u32 *places, u32 woven, u32 second, u32 third
#define PLACES Places{places, woven, second, third, num_positions}

/// Places of rows, and which of its numbers a pair takes: `RopeAxes`.
struct Places {
    const u32* of_rows; // [M, 3]
    u32 woven;          // else in runs
    u32 second, third;  // in runs the first pairs that take them; woven the ends of pairs that do
    u32 limit;          // positions of the table
    __device__ __forceinline__ u32 axis(u32 pair) const {
        if (!woven) return (pair >= second) + (pair >= third);
        const u32 turn = pair % 3;
        return (turn == 1 && pair < second) || (turn == 2 && pair < third) ? turn : 0;
    }
    /// Nothing is read at a row's position.
    static __device__ __forceinline__ bool position_ok(u32, u32) { return true; }
};

/// Cosines and sines of a row's pairs, of a table [positions, width / 2, 2].
struct Angles {
    const Places& places;
    const float* table;
    const u32* place;
    u32 width;
    __device__ __forceinline__ Angles(const Places& places, const float* table, u32, u32 row, u32 width)
        : places(places), table(table), place(places.of_rows + (u64)row * 3), width(width) {}
    __device__ __forceinline__ const float* at(u32 pair) const {
        u32 number = place[places.axis(pair)];
        if (!index_ok(BAD_POSITION, number, places.limit)) number = 0;
        return table + (u64)number * width + 2 * pair;
    }
    __device__ __forceinline__ float cos(u32 pair) const { return at(pair)[0]; }
    __device__ __forceinline__ float sin(u32 pair) const { return at(pair)[1]; }
    /// Those of eight pairs.
    __device__ __forceinline__ void load(u32 pair, float (&cos)[8], float (&sin)[8]) const {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const float2 x = *(const float2*)at(pair + i);
            cos[i] = x.x;
            sin[i] = x.y;
        }
    }
};
