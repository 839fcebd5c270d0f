// Products of a few rows with a matrix in MLX's affine form: every weight is read and decoded once for TOKENS rows.
//
//   grid         (SIMDS * 32, weight rows / (SIMDS * ROWS) rounded up, tokens / TOKENS rounded up) threads
//   threadgroup  (SIMDS * 32, 1, 1)
//   x            T       [tokens, K]; K a multiple of 32
//   words        uint32  [rows, K * BITS / 32]: codes as one stream of bits per row, lowest first
//   scales       T       [rows, K / GROUP]
//   biases       T       [rows, K / GROUP]: value = scale * code + bias
//   out          T       [tokens, rows]
//
// A simdgroup takes ROWS weight rows and goes along K in steps of 256, 8 consecutive values to a lane. It shares nothing
// with others and meets no barrier; the lanes' sums are added at the end. Arithmetic is in float.

// The kernel's body
    const int tokens = x_shape[0];
    const int columns = x_shape[1];
    const int rows = words_shape[0];
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

    for (int at = 8 * thread_index_in_simdgroup; at < columns; at += 256) {
        const int bit = at * BITS;
        float weight[ROWS][8];
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const size_t word = row[r] * words_shape[1] + bit / 32;
            ulong packed = words[word];
            if (bit % 32 + 8 * BITS > 32) {
                packed |= ulong(words[word + 1]) << 32;
            }
            packed >>= bit % 32;
            const size_t group = row[r] * (columns / GROUP) + at / GROUP;
            const float scale = float(scales[group]);
            const float bias = float(biases[group]);
            UNROLLED for (int i = 0; i < 8; i++) {
                weight[r][i] = scale * float(uint(packed >> (BITS * i)) & ((1u << BITS) - 1)) + bias;
            }
        }
        UNROLLED for (int t = 0; t < TOKENS; t++) {
            UNROLLED for (int i = 0; i < 8; i++) {
                const float input = float(x[token[t] * columns + at + i]);
                UNROLLED for (int r = 0; r < ROWS; r++) {
                    sum[t][r] += input * weight[r][i];
                }
            }
        }
    }

    UNROLLED for (int t = 0; t < TOKENS; t++) {
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const float all = simd_sum(sum[t][r]);
            if (thread_index_in_simdgroup == 0 && first_token + t < tokens && first_row + r < rows) {
                out[size_t(first_token + t) * rows + first_row + r] = T(all);
            }
        }
    }
