/*
 * A few rows through a run of decoder blocks, and through what follows the last: all of a decoding step in one call.
 *
 * A block is: h += out(attention(norm(h))); h += down(act(gate(norm(h))) * up(norm(h))), in bfloat16, rounded where
 * transformers' own layers round. Inside a team of threads each function shares its work out among them.
 */
#include <math.h>
#include <stdlib.h>

#include "attention.h"
#include "products.h"

int omp_get_thread_num(void);

/* program.py has the same structures. */
typedef struct {
  matrix q, k, v, out, gate, up, down;
  const uint16_t *attention_norm, *mlp_norm; /* [hidden] */
  const uint16_t *q_norm, *k_norm;           /* [dim], or NULL */
  int turns;                                 /* whether queries and keys are turned by their positions */
} block;

/* What one block keeps of a sequence: [kv_heads, room, dim] each; rows are written from ``start`` on. */
typedef struct {
  uint16_t *keys, *values;
  long room, start, window; /* window 0: everything is seen */
} place;

/* One row: where its sequence lies in each block, and how many rows of that sequence go before it in this step. */
typedef struct {
  const place *places;
  long before;
} seat;

typedef struct {
  long hidden, heads, kv_heads, dim, inner;
  float epsilon, scale; /* of the norms; of attention, times log2 of e */
} shape;

/*
 * A step as one thread sees it, all bfloat16 but operands and scores. The rows that a matrix is multiplied with are
 * made by every thread for itself, which takes less time than waiting for another to have made them.
 */
typedef struct {
  const shape *of;
  long rows, operand_step, qkv_step, most_tokens;
  uint16_t *h;                   /* [rows, hidden] */
  uint16_t *qkv;                 /* [rows, qkv_step]: queries, keys, values */
  uint16_t *attended;            /* [rows, heads * dim] */
  uint16_t *inner;               /* [rows, inner] */
  const uint16_t *cosine, *sine; /* [rows, dim] */
  seat *seats;                   /* [rows], no numbers */
  uint16_t *normed;              /* its own: [hidden] */
  char *operands;                /* its own: [rows, operand_step] */
  float *scores;                 /* its own: [most_tokens] */
} step;

INLINE long tiles_of(const matrix *m) { return (m->rows + LANES - 1) / LANES; }
INLINE long least(long a, long b) { return a < b ? a : b; }

/* y = x / rms(x) * weight; ``count`` a multiple of 16, y may be x */
static void norm(uint16_t *y, const uint16_t *x, const uint16_t *weight, long count, float epsilon) {
  lanes squares = {0};
  for (long i = 0; i < count; i += LANES) squares += load_bfloat16(x + i) * load_bfloat16(x + i);
  float inverse = 1 / sqrtf(sum(squares) / count + epsilon);
  for (long i = 0; i < count; i += LANES)
    store_bfloat16(y + i, rounded(load_bfloat16(x + i) * inverse) * load_bfloat16(weight + i));
}

/* The rows of h normed, as operands of ``m``. */
static void norm_rows(const step *s, const uint16_t *weight, const matrix *m) {
  long hidden = s->of->hidden;
  for (long r = 0; r < s->rows; r++) {
    norm(s->normed, s->h + r * hidden, weight, hidden, s->of->epsilon);
    kafila_operand(s->operands + r * s->operand_step, s->normed, BFLOAT16, hidden, m->bits);
  }
}

static void operand_rows(const step *s, const uint16_t *x, const matrix *m) {
  for (long r = 0; r < s->rows; r++)
    kafila_operand(s->operands + r * s->operand_step, x + r * m->columns, BFLOAT16, m->columns, m->bits);
}

/* y [rows, y_step] = the operands times m, or y + that */
static void multiply(const step *s, const matrix *m, uint16_t *y, long y_step, int adds) {
  SHARED_NO_WAIT for (long tile = 0; tile < tiles_of(m); tile++)
    for (long first = 0; first < s->rows; first += TOGETHER) {
      float out[TOGETHER][LANES];
      long count = least(s->rows - first, TOGETHER);
      kafila_tile(m, tile, s->operands + first * s->operand_step, s->operand_step, count, out);
      for (long r = 0; r < count; r++)
        for (long i = tile * LANES; i < least(m->rows, (tile + 1) * LANES); i++) {
          uint16_t *to = y + (first + r) * y_step + i, number = kafila_number(m, i, out[r][i % LANES]);
          *to = adds ? narrow(widen(*to) + widen(number)) : number;
        }
    }
}

/* x / (1 + e^-x) */
INLINE lanes silu(lanes x) {
  lanes e = exp2_lanes(magnitude(x) * -1.44269504f);
  return x * chosen(x < 0.0f, e, all(1)) / (1.0f + e);
}

/* inner = act(gate) * up */
static void multiply_gated(const step *s, const block *b) {
  SHARED_NO_WAIT for (long tile = 0; tile < tiles_of(&b->gate); tile++)
    for (long first = 0; first < s->rows; first += TOGETHER) {
      float gate[TOGETHER][LANES], up[TOGETHER][LANES];
      const char *operands = s->operands + first * s->operand_step;
      long count = least(s->rows - first, TOGETHER), start = tile * LANES;
      kafila_tile(&b->gate, tile, operands, s->operand_step, count, gate);
      kafila_tile(&b->up, tile, operands, s->operand_step, count, up);
      for (long r = 0; r < count; r++) {
        uint16_t numbers[2][LANES];
        for (int i = 0; i < LANES; i++) {
          numbers[0][i] = kafila_number(&b->gate, start + i, gate[r][i]);
          numbers[1][i] = kafila_number(&b->up, start + i, up[r][i]);
        }
        lanes acted = rounded(silu(load_bfloat16(numbers[0])));
        store_bfloat16(s->inner + (first + r) * s->of->inner + start, acted * load_bfloat16(numbers[1]));
      }
    }
}

/* A head turned by its position: x * cos + (-second half, first half) * sin. */
static void rotate(uint16_t *x, const uint16_t *cosine, const uint16_t *sine, long dim) {
  for (long i = 0; i < dim / 2; i += LANES) {
    long j = i + dim / 2;
    lanes a = load_bfloat16(x + i), b = load_bfloat16(x + j);
    lanes turned_a = rounded(a * load_bfloat16(cosine + i)) - rounded(b * load_bfloat16(sine + i));
    lanes turned_b = rounded(b * load_bfloat16(cosine + j)) + rounded(a * load_bfloat16(sine + j));
    store_bfloat16(x + i, turned_a);
    store_bfloat16(x + j, turned_b);
  }
}

/* Queries and keys normed and turned, keys and values put in their place. */
static void place_rows(const step *s, const block *b, long at) {
  const shape *of = s->of;
  long dim = of->dim, heads = of->heads + 2 * of->kv_heads;
  SHARED for (long i = 0; i < s->rows * heads; i++) {
    long r = i / heads, head = i % heads, own = head - of->heads;
    uint16_t *x = s->qkv + r * s->qkv_step + head * dim;
    if (own < of->kv_heads) {
      const uint16_t *weight = own < 0 ? b->q_norm : b->k_norm;
      if (weight) norm(x, x, weight, dim, of->epsilon);
      if (b->turns) rotate(x, s->cosine + r * dim, s->sine + r * dim, dim);
    }
    if (own >= 0) {
      const place *p = s->seats[r].places + at;
      uint16_t *buffer = own < of->kv_heads ? p->keys : p->values;
      memcpy(buffer + (own % of->kv_heads * p->room + p->start + s->seats[r].before) * dim, x, dim * sizeof *x);
    }
  }
}

static void attend_rows(const step *s, long at) {
  const shape *of = s->of;
  SHARED for (long i = 0; i < s->rows * of->heads; i++) {
    long r = i / of->heads, head = i % of->heads, own = head / (of->heads / of->kv_heads);
    const place *p = s->seats[r].places + at;
    long end = p->start + s->seats[r].before + 1, first = p->window && end > p->window ? end - p->window : 0;
    long from = (own * p->room + first) * of->dim;
    attended a = {p->keys + from, p->values + from, end - first, of->dim, of->dim, of->dim, of->dim};
    kafila_attend_head(&a, s->qkv + r * s->qkv_step + head * of->dim, s->attended + i * of->dim,
                       s->scores, of->scale);
  }
}

/* Block ``b``, which is the one ``at`` in the run of blocks. */
static void run_block(const step *s, const block *b, long at) {
  const shape *of = s->of;
  uint16_t *keys = s->qkv + of->heads * of->dim, *values = keys + of->kv_heads * of->dim;
  norm_rows(s, b->attention_norm, &b->q);
  multiply(s, &b->q, s->qkv, s->qkv_step, 0);
  multiply(s, &b->k, keys, s->qkv_step, 0);
  if (b->v.bits != b->q.bits) norm_rows(s, b->attention_norm, &b->v);
  multiply(s, &b->v, values, s->qkv_step, 0);
  MEET
  place_rows(s, b, at);
  attend_rows(s, at);
  operand_rows(s, s->attended, &b->out);
  multiply(s, &b->out, s->h, of->hidden, 1);
  MEET
  norm_rows(s, b->mlp_norm, &b->gate);
  multiply_gated(s, b);
  MEET
  operand_rows(s, s->inner, &b->down);
  multiply(s, &b->down, s->h, of->hidden, 1);
  MEET
}

/* ``bytes`` of what lies at ``*at``, which moves on. */
static void *taken(char **at, long bytes) {
  char *from = *at;
  *at += (bytes + 63) / 64 * 64;
  return from;
}

INLINE long most(long a, long b) { return a > b ? a : b; }

/* What each thread has for itself: where it lies if ``memory`` is given, and its bytes. */
static long lay_out_own(step *s, char *memory) {
  char *at = memory;
  s->normed = taken(&at, s->of->hidden * sizeof(uint16_t));
  s->operands = taken(&at, s->rows * s->operand_step);
  s->scores = taken(&at, s->most_tokens * sizeof(float));
  return at - memory;
}

/* What they share, the same way. */
static long lay_out_shared(step *s, char *memory) {
  long row = s->rows * sizeof(uint16_t);
  char *at = memory;
  s->qkv = taken(&at, row * s->qkv_step);
  s->attended = taken(&at, row * s->of->heads * s->of->dim);
  s->inner = taken(&at, row * s->of->inner);
  s->seats = taken(&at, s->rows * sizeof(seat));
  return at - memory;
}

/* The calling thread's step, with its part of what lies at ``memory`` for all of them. */
static step own_step(const step *shared, char *memory) {
  step own = *shared;
  lay_out_own(&own, memory + omp_get_thread_num() * lay_out_own(&own, 0));
  return own;
}

/* Seats of rows that come one sequence after the other; gives the longest that one will be in any block. */
static long take_seats(step *s, const place *places, const long *counts, long sequences, long blocks) {
  long row = 0, longest = 0;
  for (long q = 0; q < sequences; q++, places += blocks) {
    for (long i = 0; i < blocks; i++) longest = most(longest, places[i].start + counts[q]);
    for (long before = 0; before < counts[q]; before++) s->seats[row++] = (seat){places, before};
  }
  return longest;
}

/* Bytes that a row has at most as the operand of a matrix. */
static long most_operand_bytes(const block *b, long blocks) {
  long bytes = 0;
  for (long i = 0; i < blocks; i++) {
    const matrix *all[] = {&b[i].q, &b[i].k, &b[i].v, &b[i].out, &b[i].gate, &b[i].up, &b[i].down};
    for (int j = 0; j < 7; j++) bytes = most(bytes, kafila_operand_bytes(all[j]->columns, all[j]->bits));
  }
  return bytes;
}

/*
 * h [rows, hidden] through ``blocks`` blocks; cosine and sine [rows, dim] of the rows' positions. The rows are those of
 * ``sequences`` sequences, ``counts`` of each, one sequence after the other, which are kept at ``places [sequences,
 * blocks]``. 0, or -1 where there was no memory.
 */
int kafila_blocks(const shape *of, const block *b, long blocks, const place *places, const long *counts,
                  long sequences, uint16_t *h, const uint16_t *cosine, const uint16_t *sine, int threads) {
  step s = {.of = of, .h = h, .cosine = cosine, .sine = sine};
  for (long q = 0; q < sequences; q++) s.rows += counts[q];
  s.qkv_step = (of->heads + 2 * of->kv_heads) * of->dim;
  s.operand_step = most_operand_bytes(b, blocks);
  char *shared = aligned_alloc(64, lay_out_shared(&s, 0));
  if (!shared) return -1;
  lay_out_shared(&s, shared);
  s.most_tokens = kafila_score_count(take_seats(&s, places, counts, sequences, blocks));
  char *own_memory = aligned_alloc(64, threads * lay_out_own(&s, 0));
  if (own_memory) TEAM {
    step own = own_step(&s, own_memory);
    for (long i = 0; i < blocks; i++) run_block(&own, b + i, i);
  }
  free(own_memory);
  free(shared);
  return own_memory ? 0 : -1;
}

/* y [rows, head->rows] = norm(h [rows, hidden]) times ``head``. */
int kafila_head(const matrix *head, const uint16_t *weight, float epsilon, const uint16_t *h, uint16_t *y, long rows,
                int threads) {
  shape of = {.hidden = head->columns, .epsilon = epsilon};
  step s = {.of = &of, .rows = rows, .h = (uint16_t *)h};
  s.operand_step = kafila_operand_bytes(of.hidden, head->bits);
  char *memory = aligned_alloc(64, threads * lay_out_own(&s, 0));
  if (!memory) return -1;
  TEAM {
    step own = own_step(&s, memory);
    norm_rows(&own, weight, head);
    multiply(&own, head, y, head->rows, 0);
  }
  free(memory);
  return 0;
}
