/*
 * Products of a few rows with a weight matrix, and one row's attention: what a decoding stage spends its time in.
 *
 * Each row of the result comes from the same operations in the same order whatever the other rows, the
 * number of threads, and the width of the processor's vectors: vectors here always have 16 lanes.
 *
 * Packed weights (kafila_agent/kernels/packing.py) lie in tiles of 16 rows of the matrix, a lane to a row,
 * so that scales are vectors and nothing is summed across lanes. Words are little-endian. A tile of
 *
 *   8 bits:  for each 64 columns  16 words of scales (columns 0-31 low half, 32-63 high half, float16)
 *                                 16 x 16 words of 4 signed bytes, lowest column lowest
 *   4 bits:  for each 32 columns  16 words of scale (low half) and least value (high half, float16)
 *                                  4 x 16 words of 8 nibbles, lowest column lowest
 *
 * Rows of the input and of the result are float32 (element 0) or bfloat16 (element 1). Results: 0, or -1
 * where there was no memory.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define GROUP 32
#define ROWS 4 /* rows of a dense matrix that are taken together, to load the input once */
#define WORDS8 (LANES + 16 * LANES)
#define WORDS4 (LANES + 4 * LANES)
#define FOR_EACH_TILE _Pragma("omp parallel for num_threads(threads) if (threads > 1) schedule(static)")

#define INLINE static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

INLINE lanes load(const float *from) { lanes v; memcpy(&v, from, sizeof v); return v; }
INLINE words load_words(const void *from) { words v; memcpy(&v, from, sizeof v); return v; }
INLINE lanes whole(ints v) { return __builtin_convertvector(v, lanes); }

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

/* finite float16 in the low half of each lane */
INLINE lanes of_half(words half) {
  lanes magnitude = (lanes)((half & 0x7fffu) << 13) * 0x1p112f;
  return (lanes)((words)magnitude | (half & 0x8000u) << 16);
}

INLINE float sum(lanes v) {
  float part[LANES];
  memcpy(part, &v, sizeof v);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) part[i] += part[i + half];
  return part[0];
}

INLINE float input(const void *x, long at, int element) {
  return element ? widen(((const uint16_t *)x)[at]) : ((const float *)x)[at];
}

INLINE void output(void *y, long at, float value, int element) {
  if (element) ((uint16_t *)y)[at] = narrow(value);
  else ((float *)y)[at] = value;
}

/* Rows of ``columns`` as float32, padded with zeros to ``padded``; NULL where there is no memory. */
static float *prepared(const void *x, long rows, long columns, long padded, int element) {
  size_t bytes = sizeof(float) * rows * padded;
  float *out = aligned_alloc(sizeof(lanes), (bytes / sizeof(lanes) + 1) * sizeof(lanes));
  for (long r = 0; out && r < rows; r++)
    for (long i = 0; i < padded; i++) out[r * padded + i] = i < columns ? input(x, r * columns + i, element) : 0;
  return out;
}

/* Each 32 numbers as the 16 at even places, then the 16 at odd ones: how a vector of pairs comes apart. */
static void part_pairs(float *x, long count) {
  for (long g = 0; g < count; g += GROUP) {
    float group[GROUP];
    memcpy(group, x + g, sizeof group);
    for (int i = 0; i < GROUP; i++) x[g + i / 2 + i % 2 * LANES] = group[i];
  }
}

INLINE void dense_rows(const uint16_t *w, const float *x, const uint16_t *bias, uint16_t *y, long k,
                              const int count) {
  lanes even[ROWS] = {0}, odd[ROWS] = {0};
  for (long g = 0; g < k; g += GROUP) {
    lanes x_even = load(x + g), x_odd = load(x + g + LANES);
    for (int t = 0; t < count; t++) {
      words pairs = load_words(w + t * k + g);
      even[t] += (lanes)(pairs << 16) * x_even;
      odd[t] += (lanes)(pairs & 0xffff0000u) * x_odd;
    }
  }
  for (int t = 0; t < count; t++) y[t] = narrow(sum(even[t] + odd[t]) + (bias ? widen(bias[t]) : 0));
}

/* y [m, n] = x [m, k] w [n, k]^T + bias [n] or NULL, all bfloat16; k a multiple of 32. */
int kafila_dense(const uint16_t *w, const uint16_t *bias, const uint16_t *x, uint16_t *y, long m, long n, long k,
                 int threads) {
  float *wide = prepared(x, m, k, k, 1);
  if (!wide) return -1;
  part_pairs(wide, m * k);
  FOR_EACH_TILE
  for (long row = 0; row < n; row += ROWS)
    for (long r = 0; r < m; r++) {
      if (row + ROWS <= n)
        dense_rows(w + row * k, wide + r * k, bias ? bias + row : 0, y + r * n + row, k, ROWS);
      else
        for (long last = row; last < n; last++)
          dense_rows(w + last * k, wide + r * k, bias ? bias + last : 0, y + r * n + last, k, 1);
    }
  free(wide);
  return 0;
}

INLINE lanes tile8(const uint32_t *w, const float *x, long pieces) {
  lanes total = {0};
  for (long p = 0; p < pieces; p++, w += WORDS8) {
    words scales = load_words(w);
    for (int half = 0; half < 2; half++) {
      lanes a = {0}, b = {0}, c = {0}, d = {0};
      for (int i = 0; i < 8; i++) {
        ints v = (ints)load_words(w + (1 + half * 8 + i) * LANES);
        const float *four = x + p * 64 + half * GROUP + i * 4;
        a += whole((v << 24) >> 24) * four[0];
        b += whole((v << 16) >> 24) * four[1];
        c += whole((v << 8) >> 24) * four[2];
        d += whole(v >> 24) * four[3];
      }
      total += of_half(half ? scales >> 16 : scales & 0xffffu) * ((a + b) + (c + d));
    }
  }
  return total;
}

INLINE lanes tile4(const uint32_t *w, const float *x, const float *sums, long pieces) {
  lanes total = {0};
  for (long p = 0; p < pieces; p++, w += WORDS4) {
    words scales = load_words(w);
    lanes a = {0}, b = {0}, c = {0}, d = {0};
    for (int i = 0; i < 4; i++) {
      words v = load_words(w + (1 + i) * LANES);
      const float *eight = x + p * GROUP + i * 8;
      a += whole((ints)(v & 15)) * eight[0];
      b += whole((ints)(v >> 4 & 15)) * eight[1];
      c += whole((ints)(v >> 8 & 15)) * eight[2];
      d += whole((ints)(v >> 12 & 15)) * eight[3];
      a += whole((ints)(v >> 16 & 15)) * eight[4];
      b += whole((ints)(v >> 20 & 15)) * eight[5];
      c += whole((ints)(v >> 24 & 15)) * eight[6];
      d += whole((ints)(v >> 28)) * eight[7];
    }
    total += of_half(scales & 0xffffu) * ((a + b) + (c + d)) + of_half(scales >> 16) * sums[p];
  }
  return total;
}

/* y [m, n] = x [m, k] w^T, w packed in ``bits`` 8 or 4 with ``pieces`` of 64 or 32 columns. */
int kafila_packed(const uint32_t *w, int bits, const void *x, void *y, long m, long n, long k, long pieces,
                  int element, int threads) {
  long padded = pieces * (bits == 8 ? 64 : GROUP), words_each = pieces * (bits == 8 ? WORDS8 : WORDS4);
  float *wide = prepared(x, m, k, padded, element), *sums = malloc(sizeof(float) * m * (padded / GROUP));
  if (wide && sums) {
    for (long g = 0; g < m * (padded / GROUP); g++) {
      sums[g] = 0;
      for (int i = 0; i < GROUP; i++) sums[g] += wide[g * GROUP + i];
    }
    FOR_EACH_TILE
    for (long tile = 0; tile < (n + LANES - 1) / LANES; tile++)
      for (long r = 0; r < m; r++) {
        const uint32_t *own = w + tile * words_each;
        lanes total = bits == 8 ? tile8(own, wide + r * padded, pieces)
                                : tile4(own, wide + r * padded, sums + r * pieces, pieces);
        float result[LANES];
        memcpy(result, &total, sizeof total);
        for (long i = 0; i < LANES && tile * LANES + i < n; i++)
          output(y, r * n + tile * LANES + i, result[i], element);
      }
  }
  int failed = wide && sums ? 0 : -1;
  free(wide);
  free(sums);
  return failed;
}

/* 2^x for x <= 0: the whole part goes to the exponent, the rest through a polynomial good to float32's last bits. */
INLINE lanes exp2_lanes(lanes x) {
  ints far = x < -126.0f; /* all ones where it is */
  x = (lanes)(((ints)x & ~far) | ((ints)((lanes){0} - 126.0f) & far));
  ints down = __builtin_convertvector(x - 0.5f, ints);
  lanes f = x - whole(down);
  lanes p = f * 1.535336188e-4f + 1.339887440e-3f;
  p = p * f + 9.618437357e-3f;
  p = p * f + 5.550332548e-2f;
  p = p * f + 2.402264791e-1f;
  p = p * f + 6.931472028e-1f;
  return (p * f + 1.0f) * (lanes)((down + 127) << 23);
}

/* scores[t] = 2^(scores[t] - most), zeros after ``tokens`` up to whole lanes; gives their sum */
static float soften(float *scores, long tokens) {
  float most = scores[0];
  for (long t = 1; t < tokens; t++) most = scores[t] > most ? scores[t] : most;
  lanes total = {0};
  for (long t = 0; t < tokens; t += LANES) {
    lanes part = exp2_lanes(load(scores + t) - most);
    memcpy(scores + t, &part, sizeof part);
  }
  for (long t = tokens; t % LANES; t++) scores[t] = 0;
  for (long t = 0; t < tokens; t += LANES) total += load(scores + t);
  return sum(total);
}

static void attend(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *y, float *scores, long tokens,
                   long k_step, long v_step, long k_dim, long v_dim, float scale) {
  float query[k_dim];
  for (long i = 0; i < k_dim; i++) query[i] = widen(q[i]) * scale;
  part_pairs(query, k_dim);
  for (long t = 0; t < tokens; t++) {
    lanes even = {0}, odd = {0};
    for (long i = 0; i < k_dim; i += GROUP) {
      words pairs = load_words(k + t * k_step + i);
      even += (lanes)(pairs << 16) * load(query + i);
      odd += (lanes)(pairs & 0xffff0000u) * load(query + i + LANES);
    }
    scores[t] = sum(even + odd);
  }
  for (long t = tokens; t % LANES; t++) scores[t] = scores[0];
  float total = soften(scores, tokens);
  for (long i = 0; i < v_dim; i += GROUP) {
    lanes even = {0}, odd = {0};
    for (long t = 0; t < tokens; t++) {
      words pairs = load_words(v + t * v_step + i);
      even += (lanes)(pairs << 16) * scores[t];
      odd += (lanes)(pairs & 0xffff0000u) * scores[t];
    }
    float out[2][LANES];
    memcpy(out[0], &even, sizeof even);
    memcpy(out[1], &odd, sizeof odd);
    for (int j = 0; j < GROUP; j++) y[i + j] = narrow(out[j % 2][j / 2] / total);
  }
}

/*
 * One row's attention, bfloat16: q [heads, k_dim], k and v of kv_heads whose heads and tokens lie so many numbers
 * apart, y [heads, v_dim]; dims multiples of 32, scale times log2 of e.
 */
int kafila_attend(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *y, long heads, long kv_heads,
                  long tokens, long k_head, long k_step, long v_head, long v_step, long k_dim, long v_dim, float scale,
                  int threads) {
  long row = (tokens / LANES + 1) * LANES;
  float *scores = aligned_alloc(sizeof(lanes), sizeof(float) * heads * row);
  if (!scores) return -1;
  FOR_EACH_TILE
  for (long h = 0; h < heads; h++) {
    long own = h / (heads / kv_heads);
    attend(q + h * k_dim, k + own * k_head, v + own * v_head, y + h * v_dim, scores + h * row, tokens, k_step, v_step,
           k_dim, v_dim, scale);
  }
  free(scores);
  return 0;
}
