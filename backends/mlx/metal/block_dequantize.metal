// Chosen rows of a matrix in a GGUF file's own blocks, decoded: embeddings, and large products by way of a dense matrix.
//
//   grid         (32, columns / 256 rounded up, chosen rows) threads
//   threadgroup  (32, 1, 1)
//   blocks       uint16  [rows, words of a row]: the file's bytes
//   index        int32   [at least the chosen rows]
//   columns      int32   [1]: K
//   out          T       [chosen rows, K]
//
// A simdgroup decodes one stretch of 256 values of one row; see block_matmul.metal.

// The kernel's body
    const int lane = thread_index_in_simdgroup;
    const int stretch = threadgroup_position_in_grid.y;
    const int chosen = threadgroup_position_in_grid.z;
    const int width = columns[0];
    if (stretch * 256 + pair_at(lane, 0) < width) {
        float value[8];
        decode(blocks + size_t(index[chosen]) * blocks_shape[1] + stretch * STRETCH, lane, value);
        UNROLLED for (int pair = 0; pair < 4; pair++) {
            const size_t at = size_t(chosen) * width + stretch * 256 + pair_at(lane, pair);
            out[at] = T(value[2 * pair]);
            out[at + 1] = T(value[2 * pair + 1]);
        }
    }
