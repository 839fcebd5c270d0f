// Attention of single queries over a paged KV pool, read where it lies: no gather, no copy.
//
// One threadgroup takes one item: a query token, the TILE query heads of one KV head that share its keys, and a span of
// consecutive keys. Long contexts are several items; paged_attention_reduce joins them. The host makes the items, so
// causal masks and sliding windows are the bounds of a span, and decodes and prompts of any length mix in one launch.
//
//   grid         (SIMDS * 32, KV_HEADS * TILES, items) threads
//   threadgroup  (SIMDS * 32, 1, 1)
//   q            T      [tokens, HEADS, HEAD_DIM]
//   k_pool       POOL   [blocks, BLOCK, KV_HEADS, HEAD_DIM]; POOL is T, or int8 with SCALED 1
//   v_pool       POOL   the same
//   tables       int32  [sequences, columns]: block of a sequence's keys n * BLOCK to n * BLOCK + BLOCK - 1
//   items        int32  [items, 4]: token, sequence, first key, end of keys (exclusive)
//   SCALED 1: k_scales, v_scales  float  [blocks, BLOCK, KV_HEADS]: a key is its codes times its scale
//   SPLIT 0: out      T      [tokens, HEADS, HEAD_DIM]; every token has exactly one item
//   SPLIT 1: partial  float  [items, HEADS, HEAD_DIM]: attention over the span alone
//            lse      float  [items, HEADS]: log2 of the sum of 2^score
//
// A key's elements are spread over LANES lanes, PER consecutive ones each, so that a simdgroup works on 32 / LANES keys
// at a time and a dot product takes log2(LANES) shuffles; UNROLL keys per lane are under way together, with one
// rescaling of the running sum for all. Scores are in powers of two: FACTOR is scale * log2(e), or with a soft cap
// scale / CAP, the score then being CAP * tanh(q.k * FACTOR) * log2(e). Arithmetic is in float.

#define KEYS (32 / LANES)
#define SLOTS (SIMDS * KEYS)

// Below every score, and finite: the difference of two such is 0, not NaN, and fast math has no infinities.
constexpr constant static float LOWEST = -1e38f;
constexpr constant static float LOG2_E = 1.442695041f;

// The kernel's body
    const int item = threadgroup_position_in_grid.z;
    const int first_head = threadgroup_position_in_grid.y * TILE;
    const int kv_head = threadgroup_position_in_grid.y / TILES;
    const int token = items[4 * item];
    const int sequence = items[4 * item + 1];
    const int start = items[4 * item + 2];
    const int stop = items[4 * item + 3];
    const int at = (thread_index_in_simdgroup % LANES) * PER;
    const int slot = simdgroup_index_in_threadgroup * KEYS + thread_index_in_simdgroup / LANES;

    float query[TILE][PER];
    float sum[TILE][PER];
    float highest[TILE];
    float total[TILE];
    UNROLLED for (int h = 0; h < TILE; h++) {
        highest[h] = LOWEST;
        total[h] = 0;
        UNROLLED for (int i = 0; i < PER; i++) {
            query[h][i] = float(q[(size_t(token) * HEADS + first_head + h) * HEAD_DIM + at + i]) * FACTOR;
            sum[h][i] = 0;
        }
    }

    for (int tile = start; tile < stop; tile += SLOTS * UNROLL) {
        size_t where[UNROLL]; // row of the pool
        float score[UNROLL][TILE];
#if SCALED
        float value_scale[UNROLL];
#endif
        UNROLLED for (int u = 0; u < UNROLL; u++) {
            const int key = tile + u * SLOTS + slot;
            const bool seen = key < stop;
            float part[PER];
            where[u] = 0;
#if SCALED
            float scale = 0;
            value_scale[u] = 0;
#endif
            UNROLLED for (int i = 0; i < PER; i++) {
                part[i] = 0;
            }
            if (seen) {
                const size_t block = tables[size_t(sequence) * tables_shape[1] + key / BLOCK];
                where[u] = (block * BLOCK + key % BLOCK) * KV_HEADS + kv_head;
                UNROLLED for (int i = 0; i < PER; i++) {
                    part[i] = float(k_pool[where[u] * HEAD_DIM + at + i]);
                }
#if SCALED
                scale = k_scales[where[u]];
                value_scale[u] = v_scales[where[u]];
#endif
            }
            UNROLLED for (int h = 0; h < TILE; h++) {
                float dot = 0;
                UNROLLED for (int i = 0; i < PER; i++) {
                    dot += query[h][i] * part[i];
                }
                UNROLLED for (int lanes = 1; lanes < LANES; lanes *= 2) {
                    dot += simd_shuffle_xor(dot, lanes);
                }
#if SCALED
                dot *= scale;
#endif
#if CAPPED
                dot = CAP * LOG2_E * metal::precise::tanh(dot);
#endif
                score[u][h] = seen ? dot : LOWEST;
            }
        }
        UNROLLED for (int h = 0; h < TILE; h++) {
            float top = highest[h];
            UNROLLED for (int u = 0; u < UNROLL; u++) {
                top = metal::max(top, score[u][h]);
            }
            const float rescale = metal::exp2(highest[h] - top);
            highest[h] = top;
            total[h] *= rescale;
            UNROLLED for (int i = 0; i < PER; i++) {
                sum[h][i] *= rescale;
            }
            UNROLLED for (int u = 0; u < UNROLL; u++) {
                score[u][h] = metal::exp2(score[u][h] - top);
                total[h] += score[u][h];
#if SCALED
                score[u][h] *= value_scale[u];
#endif
            }
        }
        UNROLLED for (int u = 0; u < UNROLL; u++) {
            if (tile + u * SLOTS + slot < stop) {
                UNROLLED for (int i = 0; i < PER; i++) {
                    const float value = float(v_pool[where[u] * HEAD_DIM + at + i]);
                    UNROLLED for (int h = 0; h < TILE; h++) {
                        sum[h][i] += score[u][h] * value;
                    }
                }
            }
        }
    }

    threadgroup float slot_sum[SLOTS * HEAD_DIM];
    threadgroup float slot_highest[TILE * SLOTS];
    threadgroup float slot_total[TILE * SLOTS];
    if (at == 0) {
        UNROLLED for (int h = 0; h < TILE; h++) {
            slot_highest[h * SLOTS + slot] = highest[h];
            slot_total[h * SLOTS + slot] = total[h];
        }
    }
    UNROLLED for (int h = 0; h < TILE; h++) {
        UNROLLED for (int i = 0; i < PER; i++) {
            slot_sum[slot * HEAD_DIM + at + i] = sum[h][i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float top = LOWEST;
        for (int s = 0; s < SLOTS; s++) {
            top = metal::max(top, slot_highest[h * SLOTS + s]);
        }
        float all = 0;
        for (int s = 0; s < SLOTS; s++) {
            all += metal::exp2(slot_highest[h * SLOTS + s] - top) * slot_total[h * SLOTS + s];
        }
        for (int d = thread_index_in_threadgroup; d < HEAD_DIM; d += SIMDS * 32) {
            float value = 0;
            for (int s = 0; s < SLOTS; s++) {
                value += metal::exp2(slot_highest[h * SLOTS + s] - top) * slot_sum[s * HEAD_DIM + d];
            }
#if SPLIT
            partial[(size_t(item) * HEADS + first_head + h) * HEAD_DIM + d] = value / all;
#else
            out[(size_t(token) * HEADS + first_head + h) * HEAD_DIM + d] = T(value / all);
#endif
        }
#if SPLIT
        if (thread_index_in_threadgroup == 0) {
            lse[size_t(item) * HEADS + first_head + h] = top + metal::log2(all);
        }
#endif
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
