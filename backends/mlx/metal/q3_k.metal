// Q3_K: 256 values in 110 bytes: 32 of high bits, 64 of low bit pairs, 12 of 6-bit scales, a float16 scale.
// A lane takes two neighbouring columns of each quarter of a half, whose bits share bytes.

#define STRETCH 55

inline int pair_at(int lane, int pair) {
    return lane / 16 * 128 + pair * 32 + lane % 16 * 2;
}

inline void decode(const device uint16_t* block, int lane, thread float* value) {
    const int side = lane / 16;
    const int column = lane % 16;
    const float scale = half_in(block[54]);
    const int high = block[column] >> (4 * side);
    const int low = block[16 + side * 16 + column];
    UNROLLED for (int pair = 0; pair < 4; pair++) {
        const int group = side * 8 + pair * 2 + column / 8;
        const int nibble = byte_of(block, 96 + group % 8) >> (group / 8 * 4) & 15;
        const int two = byte_of(block, 104 + group % 4) >> (group / 4 * 2) & 3;
        const float step = scale * float((nibble | (two << 4)) - 32);
        value[2 * pair] = step * float((low >> (2 * pair) & 3) + (high >> pair & 1) * 4 - 4);
        value[2 * pair + 1] = step * float((low >> (2 * pair + 8) & 3) + (high >> (pair + 8) & 1) * 4 - 4);
    }
}

