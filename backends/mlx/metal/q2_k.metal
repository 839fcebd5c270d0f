// Q2_K: 256 values in 84 bytes: 16 of scale and minimum (4 bits each), 64 of bit pairs, float16 scale and minimum.
// A lane takes two neighbouring columns of each quarter of a half, whose bits share bytes.

#define STRETCH 42

inline int pair_at(int lane, int pair) {
    return lane / 16 * 128 + pair * 32 + lane % 16 * 2;
}

inline void decode(const device uint16_t* block, int lane, thread float* value) {
    const int side = lane / 16;
    const int column = lane % 16;
    const float scale = half_in(block[40]);
    const float minimum = half_in(block[41]);
    const int bits = block[8 + side * 16 + column];
    UNROLLED for (int pair = 0; pair < 4; pair++) {
        const int both = byte_of(block, side * 8 + pair * 2 + column / 8);
        const float step = scale * float(both & 15);
        const float least = minimum * float(both >> 4);
        value[2 * pair] = step * float(bits >> (2 * pair) & 3) - least;
        value[2 * pair + 1] = step * float(bits >> (2 * pair + 8) & 3) - least;
    }
}

