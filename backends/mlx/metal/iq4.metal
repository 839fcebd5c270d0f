// The codebook that IQ4_NL and IQ4_XS share, and where their 32 values lie in 16 bytes: low nibbles first, then high.
// A lane takes 4 columns of low nibbles and the same 4 of high ones.

constexpr constant static float IQ4_VALUES[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

inline int pair_at(int lane, int pair) {
    return lane / 4 * 32 + lane % 4 * 4 + pair / 2 * 2 + pair % 2 * 16;
}

inline void decode_nibbles(const device uint16_t* words, int lane, float step, thread float* value) {
    UNROLLED for (int pair = 0; pair < 4; pair++) {
        const int bits = words[lane % 4 * 2 + pair / 2] >> (pair % 2 * 4);
        value[2 * pair] = step * IQ4_VALUES[bits & 15];
        value[2 * pair + 1] = step * IQ4_VALUES[bits >> 8 & 15];
    }
}

