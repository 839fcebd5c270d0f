// IQ4_XS: 256 values in 136 bytes: a float16 scale, eight 6-bit scales (2 bytes of high pairs, 4 of low nibbles), 128 of
// nibbles.

#define STRETCH 68

inline void decode(const device uint16_t* block, int lane, thread float* value) {
    const int group = lane / 4;
    const int low = byte_of(block, 4 + group / 2) >> (group % 2 * 4) & 15;
    const int high = block[1] >> (2 * group) & 3;
    const float step = half_in(block[0]) * float((low | (high << 4)) - 32);
    decode_nibbles(block + 4 + group * 8, lane, step, value);
}

