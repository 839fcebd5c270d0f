// Q6_K: 256 values in 210 bytes: 128 of low nibbles, 64 of high bit pairs, 16 int8 scales, a float16 scale.
// A lane takes two neighbouring columns of each quarter of a half, whose bits share bytes.

#define STRETCH 105

inline int pair_at(int lane, int pair) {
    return lane / 16 * 128 + pair * 32 + lane % 16 * 2;
}

inline void decode(const device uint16_t* block, int lane, thread float* value) {
    const int side = lane / 16;
    const int column = lane % 16;
    const float scale = half_in(block[104]);
    const int high = block[64 + side * 16 + column];
    UNROLLED for (int pair = 0; pair < 4; pair++) {
        const int low = block[side * 32 + pair % 2 * 16 + column] >> (pair / 2 * 4);
        const int two = high >> (2 * pair);
        const float step = scale * float(int8_t(byte_of(block, 192 + side * 8 + pair * 2 + column / 8)));
        value[2 * pair] = step * float(((low & 15) | ((two & 3) << 4)) - 32);
        value[2 * pair + 1] = step * float(((low >> 8 & 15) | ((two >> 8 & 3) << 4)) - 32);
    }
}

