// Products of a few rows with a matrix in a GGUF file's own blocks: every byte is read and decoded once for TOKENS rows.
//
//   grid         (SIMDS * 32, weight rows / (SIMDS * ROWS) rounded up, tokens / TOKENS rounded up) threads
//   threadgroup  (SIMDS * 32, 1, 1)
//   x            T       [tokens, K]; K a whole number of the type's blocks
//   blocks       uint16  [rows, words of a row]: the file's bytes
//   out          T       [tokens, rows]
//
// A simdgroup takes ROWS weight rows and goes along K in stretches of 256 values, STRETCH words each. The type's decode()
// gives a lane 8 of them, in pairs of neighbours that start at pair_at(). Arithmetic is in float.

// The kernel's body
    const int tokens = x_shape[0];
    const int columns = x_shape[1];
    const int rows = blocks_shape[0];
    const int lane = thread_index_in_simdgroup;
    const int first_row = (threadgroup_position_in_grid.y * SIMDS + simdgroup_index_in_threadgroup) * ROWS;
    const int first_token = threadgroup_position_in_grid.z * TOKENS;
    size_t row[ROWS];
    size_t token[TOKENS];
    float sum[TOKENS][ROWS];
    UNROLLED for (int r = 0; r < ROWS; r++) {
        row[r] = metal::min(first_row + r, rows - 1);
    }
    UNROLLED for (int t = 0; t < TOKENS; t++) {
        token[t] = metal::min(first_token + t, tokens - 1);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            sum[t][r] = 0;
        }
    }

    for (int stretch = 0; stretch * 256 + pair_at(lane, 0) < columns; stretch++) {
        float weight[ROWS][8];
        UNROLLED for (int r = 0; r < ROWS; r++) {
            decode(blocks + row[r] * blocks_shape[1] + stretch * STRETCH, lane, weight[r]);
        }
        UNROLLED for (int t = 0; t < TOKENS; t++) {
            UNROLLED for (int pair = 0; pair < 4; pair++) {
                const size_t at = token[t] * columns + stretch * 256 + pair_at(lane, pair);
                const float left = float(x[at]);
                const float right = float(x[at + 1]);
                UNROLLED for (int r = 0; r < ROWS; r++) {
                    sum[t][r] += left * weight[r][2 * pair] + right * weight[r][2 * pair + 1];
                }
            }
        }
    }

    UNROLLED for (int t = 0; t < TOKENS; t++) {
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const float all = simd_sum(sum[t][r]);
            if (lane == 0 && first_token + t < tokens && first_row + r < rows) {
                out[size_t(first_token + t) * rows + first_row + r] = T(all);
            }
        }
    }
