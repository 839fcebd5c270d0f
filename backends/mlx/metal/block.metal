// Reading GGML's blocks as 16-bit words, which every block type is a whole number of, wherever it starts.

// The float16 in a word.
inline float half_in(uint16_t word) {
    return float(as_type<half>(word));
}

// Byte n of a block.
inline int byte_of(const device uint16_t* block, int n) {
    return (block[n / 2] >> (8 * (n % 2))) & 255;
}
