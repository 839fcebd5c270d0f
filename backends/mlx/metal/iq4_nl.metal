// IQ4_NL: 32 values in 18 bytes: a float16 scale, 16 of nibbles. Eight blocks make a stretch; a row's last may be short.

#define STRETCH 72

inline void decode(const device uint16_t* block, int lane, thread float* value) {
    const device uint16_t* own = block + lane / 4 * 9;
    decode_nibbles(own + 1, lane, half_in(own[0]), value);
}

