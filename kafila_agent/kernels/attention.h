#ifndef KAFILA_ATTENTION_H
#define KAFILA_ATTENTION_H

#include "lanes.h"

/* A head's keys and values, bfloat16: tokens lie so many numbers apart; dims are multiples of 32. */
typedef struct {
  const uint16_t *keys, *values;
  long tokens, key_step, value_step, key_dim, value_dim;
} attended;

/* Numbers of scratch that attention to so many tokens needs. */
INLINE long kafila_score_count(long tokens) { return (tokens / LANES + 1) * LANES; }

/* y [value_dim] = attention of q [key_dim] to all of ``a``; ``scale`` times log2 of e; ``scores`` is scratch. */
void kafila_attend_head(const attended *a, const uint16_t *q, uint16_t *y, float *scores, float scale);

#endif
