/*
 * Vectors of 16 numbers, whatever the width of the processor's own, and the element types.
 *
 * Each number of a result comes from the same operations in the same order whatever the rows beside it and
 * the number of threads.
 */
#ifndef KAFILA_LANES_H
#define KAFILA_LANES_H

#include <stdint.h>
#include <string.h>

#define LANES 16
#define GROUP 32 /* columns with a scale of their own; bfloat16 numbers in a vector's bytes */
#define INLINE static inline __attribute__((always_inline))
/* The iterations of the loop that follows, shared out among the threads of the team that is running, if any. */
#define SHARED _Pragma("omp for schedule(static)")
#define SHARED_NO_WAIT _Pragma("omp for schedule(static) nowait")
/* Nobody goes on before all have come here. */
#define MEET _Pragma("omp barrier")
#define TEAM _Pragma("omp parallel num_threads(threads) if (threads > 1)")

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef int8_t bytes __attribute__((vector_size(LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

enum { FLOAT32 = 0, BFLOAT16 = 1 }; /* elements of inputs and results */

INLINE lanes load(const float *from) { lanes v; memcpy(&v, from, sizeof v); return v; }
INLINE words load_words(const void *from) { words v; memcpy(&v, from, sizeof v); return v; }
INLINE void store(float *to, lanes v) { memcpy(to, &v, sizeof v); }
INLINE lanes whole(ints v) { return __builtin_convertvector(v, lanes); }
INLINE lanes all(float value) { return (lanes){0} + value; }
INLINE lanes magnitude(lanes v) { return (lanes)((words)v & 0x7fffffffu); }
INLINE lanes chosen(ints where, lanes a, lanes b) { return (lanes)(((ints)a & where) | ((ints)b & ~where)); }

INLINE float widen(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

INLINE uint16_t narrow(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (value != value) return 0x7fc0;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

INLINE lanes load_bfloat16(const uint16_t *from) {
  halves v;
  memcpy(&v, from, sizeof v);
  return (lanes)(__builtin_convertvector(v, words) << 16);
}

/* rounded to bfloat16, still in float32 */
INLINE lanes rounded(lanes value) {
  words bits = (words)value;
  words near = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
  return chosen(value == value, (lanes)near, all(widen(0x7fc0)));
}

INLINE void store_bfloat16(uint16_t *to, lanes value) {
  halves v = __builtin_convertvector((words)rounded(value) >> 16, halves);
  memcpy(to, &v, sizeof v);
}

INLINE lanes load_as(const void *from, long at, int element) {
  return element == BFLOAT16 ? load_bfloat16((const uint16_t *)from + at) : load((const float *)from + at);
}

/* finite float16 in the low half of each lane; without float32's own least numbers, which take many cycles */
INLINE lanes of_half(words half) {
  words size = (half & 0x7fffu) << 13, above = size + (113u << 23);
  lanes small = (lanes)above - 0x1p-14f;
  return (lanes)((words)chosen(size < 1u << 23, small, (lanes)(above - (1u << 23))) | (half & 0x8000u) << 16);
}

/* Which lane each takes to turn a vector by so many. */
INLINE ints turned(int by) {
  return ((ints){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + by) & (LANES - 1);
}

INLINE float sum(lanes v) {
  for (int by = LANES / 2; by; by /= 2) v += __builtin_shuffle(v, turned(by));
  return v[0];
}

INLINE int32_t sum_of_ints(ints v) {
  for (int by = LANES / 2; by; by /= 2) v += __builtin_shuffle(v, turned(by));
  return v[0];
}

INLINE int32_t largest_of_ints(ints v) {
  for (int by = LANES / 2; by; by /= 2) {
    ints other = __builtin_shuffle(v, turned(by)), more = v > other;
    v = (v & more) | (other & ~more);
  }
  return v[0];
}

/* The first and the second of each pair of bfloat16 numbers. */
INLINE lanes first_of(words pairs) { return (lanes)(pairs << 16); }
INLINE lanes second_of(words pairs) { return (lanes)(pairs & 0xffff0000u); }

/* 2^x for x <= 0: the whole part goes to the exponent, the rest through a polynomial good to float32's last bits. */
INLINE lanes exp2_lanes(lanes x) {
  x = chosen(x < -126.0f, all(-126.0f), x);
  ints down = __builtin_convertvector(x - 0.5f, ints);
  lanes f = x - whole(down);
  lanes p = f * 1.535336188e-4f + 1.339887440e-3f;
  p = p * f + 9.618437357e-3f;
  p = p * f + 5.550332548e-2f;
  p = p * f + 2.402264791e-1f;
  p = p * f + 6.931472028e-1f;
  return (p * f + 1.0f) * (lanes)((down + 127) << 23);
}

#endif
