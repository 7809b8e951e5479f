/*
 * Products of rows with a weight matrix, few or many: what a stage spends its time in.
 *
 * A dense matrix is bfloat16, its products are added up in float32. Packed weights (packing.py) lie in tiles of
 * 16 rows of the matrix, a lane to a row, so that scales are vectors and nothing is summed across lanes. Words are
 * little-endian. A tile of
 *
 *   8 bits:  for each 64 columns  16 words of scales (columns 0-31 low half, 32-63 high half, float16)
 *                                 16 x 16 words of 4 signed bytes, lowest column lowest
 *   4 bits:  for each 32 columns  16 words of scale (low half) and least value (high half, float16)
 *                                  4 x 16 words of 8 nibbles, lowest column lowest
 *
 * A row to be multiplied with packed weights is cut into groups of 32 as well, each ``scale * q`` with q in
 * -127 ... 127. Within a group whole numbers are multiplied and added, without error whatever instruction does it; the
 * groups are added up in float32 one after the other.
 */
#include "products.h"

#include <math.h>
#include <stdlib.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define AHEAD_BYTES 4096
#define PIECE8 64
#define LEAST 1e-30f        /* a group of numbers that are all less counts as zeros */
#define INFINITE 0x7f800000 /* its bits; with those of no number they are more */
#define WORDS8 (LANES + 16 * LANES)
#define WORDS4 (LANES + 4 * LANES)

INLINE long groups_of(long columns, int bits) {
  return bits == 8 ? (columns + PIECE8 - 1) / PIECE8 * 2 : columns / GROUP;
}

long kafila_operand_bytes(long columns, int bits) {
  if (bits == 16) return (columns * (long)sizeof(float) + 63) / 64 * 64;
  return (groups_of(columns, bits) * (GROUP + (long)sizeof(float) + (long)sizeof(int32_t)) + 63) / 64 * 64;
}

/* A packed matrix's operand: q of all groups, then scales, then sums of q. */
typedef struct {
  const int8_t *q;
  const float *scale;
  const int32_t *sum;
} packed_row;

INLINE packed_row packed_parts(const char *operand, long groups) {
  const float *scale = (const float *)(operand + groups * GROUP);
  return (packed_row){(const int8_t *)operand, scale, (const int32_t *)(scale + groups)};
}

/* The nearest whole numbers to ``v``, halves to the even one, for what is well within 2^22. */
INLINE ints nearest(lanes v) {
  lanes shifted = v + 0x1.8p23f;
  return (ints)shifted - (ints)all(0x1.8p23f);
}

/* Of the 8 nibbles in a word one instruction takes the even ones, another the odd: so lie the columns of x. */
INLINE void store_columns(int8_t *q, ints columns, int bits) {
  if (bits == 4)
    columns = __builtin_shuffle(columns, (ints){0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15});
  bytes narrow = __builtin_convertvector(columns, bytes);
  memcpy(q, &narrow, sizeof narrow);
}

/* What is no finite number makes the scale no number; what is next to nothing counts as nothing. */
INLINE void quantise(int8_t *q, float *scale, int32_t *total, lanes first, lanes second, int bits) {
  ints a = (ints)magnitude(first), b = (ints)magnitude(second);
  union { int32_t bits; float number; } most = {largest_of_ints((ints)chosen(a > b, (lanes)a, (lanes)b))};
  float inverse = most.number > LEAST ? 127 / most.number : 0;
  ints first_q = nearest(first * inverse), second_q = nearest(second * inverse);
  store_columns(q, first_q, bits);
  store_columns(q + LANES, second_q, bits);
  *total = sum_of_ints(first_q + second_q);
  *scale = most.number <= LEAST ? 0 : most.number * (most.bits < INFINITE ? 1 / 127.0f : NAN);
}

void kafila_operand(char *to, const void *x, int element, long columns, int bits) {
  if (bits == 16) {
    for (long g = 0; g < columns; g += GROUP) {
      words pairs = load_words((const uint16_t *)x + g);
      store((float *)to + g, first_of(pairs));
      store((float *)to + g + LANES, second_of(pairs));
    }
    return;
  }
  long groups = groups_of(columns, bits);
  packed_row row = packed_parts(to, groups);
  memset(to, 0, kafila_operand_bytes(columns, bits));
  for (long g = 0; g < columns / GROUP; g++)
    quantise((int8_t *)row.q + g * GROUP, (float *)row.scale + g, (int32_t *)row.sum + g,
             load_as(x, g * GROUP, element), load_as(x, g * GROUP + LANES, element), bits);
}

/* Weights are read once, in the order in which they lie: the processor is told early what comes. */
INLINE void fetch_ahead(const void *at) { __builtin_prefetch((const char *)at + AHEAD_BYTES, 0, 2); }

/* Rows of a dense matrix that are taken at once: what is read of the input serves them all, and they do not wait for
 * each other's sums. As many as those, and what they are made of, have registers. */
#define MOST_BESIDE 4
#ifdef __AVX512F__
#define BESIDE(rows) MOST_BESIDE
#else
#define BESIDE(rows) ((rows) == 1 ? MOST_BESIDE : (rows) == 2 ? 2 : 1)
#endif

INLINE void dense_rows(const uint16_t *w, const int beside, long columns, const char *operand, long step,
                       const int rows, float out[][LANES], long at) {
  lanes total[MOST_BESIDE][TOGETHER] = {0};
  for (long g = 0; g < columns; g += GROUP) {
    lanes first[MOST_BESIDE], second[MOST_BESIDE];
    for (int i = 0; i < beside; i++) {
      words pairs = load_words(w + i * columns + g);
      fetch_ahead(w + i * columns + g);
      first[i] = first_of(pairs);
      second[i] = second_of(pairs);
    }
    for (int r = 0; r < rows; r++) {
      const float *x = (const float *)(operand + r * step) + g;
      for (int i = 0; i < beside; i++) total[i][r] += first[i] * load(x);
      for (int i = 0; i < beside; i++) total[i][r] += second[i] * load(x + LANES);
    }
  }
  for (int i = 0; i < beside; i++)
    for (int r = 0; r < rows; r++) out[r][at + i] = sum(total[i][r]);
}

INLINE void dense_tile(const matrix *m, long tile, const char *operand, long step, const int rows,
                       float out[][LANES]) {
  const uint16_t *w = (const uint16_t *)m->weights + tile * LANES * m->columns;
  long count = m->rows - tile * LANES < LANES ? m->rows - tile * LANES : LANES, i = 0;
  for (; i + BESIDE(rows) <= count; i += BESIDE(rows))
    dense_rows(w + i * m->columns, BESIDE(rows), m->columns, operand, step, rows, out, i);
  for (; i < count; i++) dense_rows(w + i * m->columns, 1, m->columns, operand, step, rows, out, i);
}

/* In each lane: its two numbers of 16 bits times the two of ``x``, added up. */
INLINE ints pairs_added(words w, int32_t x) {
#if defined(__AVX2__) && !defined(KAFILA_PORTABLE)
  __m256i half[2];
  memcpy(half, &w, sizeof w);
  for (int i = 0; i < 2; i++) half[i] = _mm256_madd_epi16(half[i], _mm256_set1_epi32(x));
  ints out;
  memcpy(&out, half, sizeof out);
  return out;
#else
  return (ints)(w & 0xffffu) * (int32_t)(int16_t)x + (ints)(w >> 16) * (x >> 16);
#endif
}

/* total + the products of four unsigned bytes of each lane of ``w`` with the four signed ones of ``x`` */
INLINE ints dot4(ints total, words w, int32_t x) {
#if defined(__AVX512VNNI__) && !defined(KAFILA_PORTABLE)
  return (ints)_mm512_dpbusd_epi32((__m512i)total, (__m512i)w, _mm512_set1_epi32(x));
#else
  /* bytes 0 and 2, and 1 and 3, as pairs of 16 bits */
  int32_t even = (uint16_t)(int8_t)x | (uint32_t)(int8_t)(x >> 16) << 16;
  int32_t odd = (uint16_t)(int8_t)(x >> 8) | (uint32_t)(int8_t)(x >> 24) << 16;
  return total + pairs_added(w & 0x00ff00ffu, even) + pairs_added(w >> 8 & 0x00ff00ffu, odd);
#endif
}

INLINE int32_t four(const int8_t *q) { int32_t v; memcpy(&v, q, sizeof v); return v; }

INLINE void tile8(const uint32_t *w, long columns, const char *operand, long step, const int rows,
                  float out[][LANES]) {
  long groups = groups_of(columns, 8);
  lanes total[TOGETHER] = {0};
  for (long g = 0; g < groups; g += 2, w += WORDS8) {
    words scales = load_words(w);
    for (int half = 0; half < 2; half++) {
      lanes scale = of_half(half ? scales >> 16 : scales & 0xffffu);
      ints dot[TOGETHER] = {0};
      for (int i = 0; i < 8; i++) {
        /* 128 more than it is: unsigned */
        const uint32_t *at = w + (1 + half * 8 + i) * LANES;
        words v = load_words(at) ^ 0x80808080u;
        fetch_ahead(at);
        for (int r = 0; r < rows; r++)
          dot[r] = dot4(dot[r], v, four(packed_parts(operand + r * step, groups).q + (g + half) * GROUP + i * 4));
      }
      for (int r = 0; r < rows; r++) {
        packed_row x = packed_parts(operand + r * step, groups);
        total[r] += scale * x.scale[g + half] * whole(dot[r] - 128 * x.sum[g + half]);
      }
    }
  }
  for (int r = 0; r < rows; r++) store(out[r], total[r]);
}

INLINE void tile4(const uint32_t *w, long columns, const char *operand, long step, const int rows,
                  float out[][LANES]) {
  long groups = groups_of(columns, 4);
  lanes total[TOGETHER] = {0};
  for (long g = 0; g < groups; g++, w += WORDS4) {
    words scales = load_words(w);
    lanes scale = of_half(scales & 0xffffu), least = of_half(scales >> 16);
    ints dot[TOGETHER] = {0};
    for (int i = 0; i < 4; i++) {
      const uint32_t *at = w + (1 + i) * LANES;
      words v = load_words(at), even = v & 0x0f0f0f0fu, odd = v >> 4 & 0x0f0f0f0fu;
      fetch_ahead(at);
      for (int r = 0; r < rows; r++) {
        const int8_t *q = packed_parts(operand + r * step, groups).q + g * GROUP + i * 8;
        dot[r] = dot4(dot4(dot[r], even, four(q)), odd, four(q + 4));
      }
    }
    for (int r = 0; r < rows; r++) {
      packed_row x = packed_parts(operand + r * step, groups);
      total[r] += scale * x.scale[g] * whole(dot[r]);
      total[r] += least * (x.scale[g] * x.sum[g]);
    }
  }
  for (int r = 0; r < rows; r++) store(out[r], total[r]);
}

INLINE void tile_of(const matrix *m, long tile, const char *operand, long step, const int rows, float out[][LANES]) {
  const uint32_t *w = m->weights;
  if (m->bits == 16) dense_tile(m, tile, operand, step, rows, out);
  else if (m->bits == 8) tile8(w + tile * groups_of(m->columns, 8) / 2 * WORDS8, m->columns, operand, step, rows, out);
  else tile4(w + tile * groups_of(m->columns, 4) * WORDS4, m->columns, operand, step, rows, out);
}

void kafila_tile(const matrix *m, long tile, const char *operand, long step, long rows, float out[TOGETHER][LANES]) {
  switch (rows) { /* each number of rows has code of its own, with its sums in registers */
  case 1: tile_of(m, tile, operand, step, 1, out); break;
  case 2: tile_of(m, tile, operand, step, 2, out); break;
  case 3: tile_of(m, tile, operand, step, 3, out); break;
  case TOGETHER: tile_of(m, tile, operand, step, TOGETHER, out);
  }
}

/* y [rows, m->rows] = x [rows, m->columns] m^T + bias; 0, or -1 where there was no memory. */
int kafila_product(const matrix *m, const void *x, void *y, long rows, int element, int threads) {
  long step = kafila_operand_bytes(m->columns, m->bits), element_bytes = element == BFLOAT16 ? 2 : 4;
  char *operands = aligned_alloc(64, step * rows);
  if (!operands) return -1;
  TEAM
  {
    SHARED for (long r = 0; r < rows; r++)
      kafila_operand(operands + r * step, (const char *)x + r * m->columns * element_bytes, element, m->columns,
                     m->bits);
    SHARED for (long tile = 0; tile < (m->rows + LANES - 1) / LANES; tile++)
      for (long first = 0; first < rows; first += TOGETHER) {
        long count = rows - first < TOGETHER ? rows - first : TOGETHER;
        float out[TOGETHER][LANES];
        kafila_tile(m, tile, operands + first * step, step, count, out);
        for (long r = 0; r < count; r++)
          for (long i = 0; i < LANES && tile * LANES + i < m->rows; i++) {
            long row = tile * LANES + i, at = (first + r) * m->rows + row;
            if (element == BFLOAT16) ((uint16_t *)y)[at] = kafila_number(m, row, out[r][i]);
            else ((float *)y)[at] = out[r][i];
          }
      }
  }
  free(operands);
  return 0;
}
