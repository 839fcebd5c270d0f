// Norms of query and key heads, where a model has them, and their rotary embedding: one launch for a layer.
//
//   grid         (32, HEADS + KV_HEADS, tokens) threads
//   threadgroup  (32, 1, 1)
//   qkv          T      [tokens, HEADS + 2 KV_HEADS, HEAD_DIM]; values are left alone
//   cosines      float  [tokens, HEAD_DIM]
//   sines        float  [tokens, HEAD_DIM]: negative for the first PAIRS elements; 0 for those that do not turn
//   NORMED 1: q_norm, k_norm  W  [HEAD_DIM]
//   q            T      [tokens, HEADS, HEAD_DIM]
//   k            T      [tokens, KV_HEADS, HEAD_DIM]
//
// A simdgroup takes one head of one token. Element d of the first PAIRS turns with element d + PAIRS. A normed value is
// rounded to T before it turns, as between two operations. Arithmetic is in float.

// The kernel's body
    const int head = threadgroup_position_in_grid.y;
    const int token = threadgroup_position_in_grid.z;
    const int lane = thread_index_in_simdgroup;
    const bool query = head < HEADS;
    const size_t from = (size_t(token) * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM;
#if NORMED
    float squares = 0;
    for (int d = lane; d < HEAD_DIM; d += 32) {
        const float value = float(qkv[from + d]);
        squares += value * value;
    }
    const float inverse = metal::rsqrt(simd_sum(squares) / HEAD_DIM + EPS);
#endif
    for (int d = lane; d < HEAD_DIM; d += 32) {
        const int other = d < PAIRS ? d + PAIRS : d < 2 * PAIRS ? d - PAIRS : d;
        float value = float(qkv[from + d]);
        float partner = float(qkv[from + other]);
#if NORMED
        value = float(T(value * inverse * float(query ? q_norm[d] : k_norm[d])));
        partner = float(T(partner * inverse * float(query ? q_norm[other] : k_norm[other])));
#endif
        const size_t turn = size_t(token) * HEAD_DIM + d;
        const T turned = T(value * cosines[turn] + partner * sines[turn]);
        if (query) {
            q[(size_t(token) * HEADS + head) * HEAD_DIM + d] = turned;
        } else {
            k[(size_t(token) * KV_HEADS + head - HEADS) * HEAD_DIM + d] = turned;
        }
    }
