// Joins the spans of each token that paged_attention left apart, weighted by 2^lse.
//
//   grid         (HEAD_DIM rounded up to 32, HEADS, tokens) threads, one for each element of a token's head
//   threadgroup  (HEAD_DIM rounded up to 32, 1, 1)
//   partial      float  [items, HEADS, HEAD_DIM]
//   lse          float  [items, HEADS]
//   starts       int32  [at least tokens + 1]: a token's items are starts[token] to starts[token + 1] - 1
//   out          T      [tokens, HEADS, HEAD_DIM]

// The kernel's body
    const int d = thread_position_in_grid.x;
    const int head = thread_position_in_grid.y;
    const int token = thread_position_in_grid.z;
    const int begin = starts[token];
    const int end = starts[token + 1];
    if (d < HEAD_DIM) {
        float top = lse[size_t(begin) * HEADS + head];
        for (int item = begin + 1; item < end; item++) {
            top = metal::max(top, lse[size_t(item) * HEADS + head]);
        }
        float all = 0;
        float value = 0;
        for (int item = begin; item < end; item++) {
            const size_t row = size_t(item) * HEADS + head;
            const float weight = metal::exp2(lse[row] - top);
            all += weight;
            value += weight * partial[row * HEAD_DIM + d];
        }
        out[(size_t(token) * HEADS + head) * HEAD_DIM + d] = T(value / all);
    }
