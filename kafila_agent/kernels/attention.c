/* One row's attention over the keys and values of a cache. */
#include "attention.h"

#include <stdlib.h>

#define SPAN 2 /* groups of a value that are added up side by side */

/* scores[t] = 2^(scores[t] - most), zeros after ``tokens`` up to whole lanes; gives their sum */
static float soften(float *scores, long tokens) {
  lanes highest = load(scores), total = {0};
  for (long t = LANES; t < tokens; t += LANES) {
    lanes part = load(scores + t);
    highest = chosen(part > highest, part, highest);
  }
  for (int by = LANES / 2; by; by /= 2) {
    lanes other = __builtin_shuffle(highest, turned(by));
    highest = chosen(other > highest, other, highest);
  }
  for (long t = 0; t < tokens; t += LANES) store(scores + t, exp2_lanes(load(scores + t) - highest));
  for (long t = tokens; t % LANES; t++) scores[t] = 0;
  for (long t = 0; t < tokens; t += LANES) total += load(scores + t);
  return sum(total);
}

/* y at ``start`` and the groups after it = values mixed by their scores, over ``total`` */
INLINE void mix(const attended *a, long start, const int groups, const float *scores, float total, uint16_t *y) {
  lanes even[SPAN] = {0}, odd[SPAN] = {0};
  for (long t = 0; t < a->tokens; t++)
    for (int g = 0; g < groups; g++) {
      words pairs = load_words(a->values + t * a->value_step + start + g * GROUP);
      even[g] += first_of(pairs) * scores[t];
      odd[g] += second_of(pairs) * scores[t];
    }
  for (int g = 0; g < groups; g++) {
    float out[2][LANES];
    store(out[0], even[g]);
    store(out[1], odd[g]);
    for (int j = 0; j < GROUP; j++) y[start + g * GROUP + j] = narrow(out[j % 2][j / 2] / total);
  }
}

void kafila_attend_head(const attended *a, const uint16_t *q, uint16_t *y, float *scores, float scale) {
  float query[a->key_dim];
  for (long i = 0; i < a->key_dim; i += GROUP) {
    words pairs = load_words(q + i);
    store(query + i, first_of(pairs) * scale);
    store(query + i + LANES, second_of(pairs) * scale);
  }
  for (long t = 0; t < a->tokens; t++) {
    lanes even = {0}, odd = {0};
    for (long i = 0; i < a->key_dim; i += GROUP) {
      words pairs = load_words(a->keys + t * a->key_step + i);
      even += first_of(pairs) * load(query + i);
      odd += second_of(pairs) * load(query + i + LANES);
    }
    scores[t] = sum(even + odd);
  }
  for (long t = a->tokens; t % LANES; t++) scores[t] = scores[0];
  float total = soften(scores, a->tokens);
  for (long i = 0; i < a->value_dim; i += SPAN * GROUP) {
    if (a->value_dim - i >= SPAN * GROUP) mix(a, i, SPAN, scores, total, y);
    else for (long j = i; j < a->value_dim; j += GROUP) mix(a, j, 1, scores, total, y);
  }
}

/*
 * One row's attention: q [heads, key_dim], keys and values of kv_heads whose heads and tokens lie so many numbers
 * apart, y [heads, value_dim]. 0, or -1 where there was no memory.
 */
int kafila_attend(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *y, long heads, long kv_heads,
                  long tokens, long k_head, long k_step, long v_head, long v_step, long k_dim, long v_dim, float scale,
                  int threads) {
  long row = kafila_score_count(tokens);
  float *scores = aligned_alloc(sizeof(lanes), sizeof(float) * heads * row);
  if (!scores) return -1;
  TEAM SHARED for (long h = 0; h < heads; h++) {
    long own = h / (heads / kv_heads);
    attended a = {k + own * k_head, v + own * v_head, tokens, k_step, v_step, k_dim, v_dim};
    kafila_attend_head(&a, q + h * k_dim, y + h * v_dim, scores + h * row, scale);
  }
  free(scores);
  return 0;
}
