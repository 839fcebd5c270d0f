// Keys and values as int8 codes and a scale for each head: one launch for a layer. The numbers are those of
// backends/cuda/kv.py: a scale is the largest magnitude over 127, NaN where a head holds a NaN or an infinity.
//
//   grid         (32, 2 KV_HEADS, tokens) threads: heads of keys, then heads of values
//   threadgroup  (32, 1, 1)
//   k, v                T       [tokens, KV_HEADS, HEAD_DIM]
//   k_codes, v_codes    int8    [tokens, KV_HEADS, HEAD_DIM]
//   k_scales, v_scales  float   [tokens, KV_HEADS]
//
// A simdgroup takes one head of one token. Fast math knows neither NaN nor infinity, so they are told by their bits.

// The kernel's body
    const bool value = threadgroup_position_in_grid.y >= KV_HEADS;
    const int head = threadgroup_position_in_grid.y % KV_HEADS;
    const size_t row = size_t(threadgroup_position_in_grid.z) * KV_HEADS + head;
    const int lane = thread_index_in_simdgroup;
    uint most = 0; // magnitudes, as their bits, which are in the same order
    for (int d = lane; d < HEAD_DIM; d += 32) {
        const float x = float(value ? v[row * HEAD_DIM + d] : k[row * HEAD_DIM + d]);
        most = metal::max(most, as_type<uint>(x) & 0x7fffffffu);
    }
    UNROLLED for (int lanes = 1; lanes < 32; lanes *= 2) {
        most = metal::max(most, simd_shuffle_xor(most, lanes));
    }
    const bool finite = most < 0x7f800000u;
    const float scale = metal::max(as_type<float>(most) / 127.0f, LEAST_SCALE);
    for (int d = lane; d < HEAD_DIM; d += 32) {
        const float x = float(value ? v[row * HEAD_DIM + d] : k[row * HEAD_DIM + d]);
        const int8_t code = finite ? int8_t(metal::rint(x / scale)) : int8_t(0);
        if (value) {
            v_codes[row * HEAD_DIM + d] = code;
        } else {
            k_codes[row * HEAD_DIM + d] = code;
        }
    }
    if (lane == 0) {
        const float kept = finite ? scale : as_type<float>(0x7fc00000u);
        if (value) {
            v_scales[row] = kept;
        } else {
            k_scales[row] = kept;
        }
    }
