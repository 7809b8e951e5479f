/* Products of rows with a matrix, dense or packed: see products.c for how they are made. */
#ifndef KAFILA_PRODUCTS_H
#define KAFILA_PRODUCTS_H

#include "lanes.h"

/* weights [rows, columns], columns a multiple of 32: bfloat16 in 16 bits, or packed in 8 or 4; bias bfloat16 or NULL */
typedef struct {
  const void *weights;
  const uint16_t *bias;
  long rows, columns;
  int bits;
} matrix;

/* Bytes of one row of the input as a matrix of so many columns takes it, a multiple of 64. */
long kafila_operand_bytes(long columns, int bits);

/* One row of the input to what ``kafila_operand_bytes`` has room for. For a dense matrix it is bfloat16. */
void kafila_operand(char *to, const void *x, int element, long columns, int bits);

#define TOGETHER 4 /* rows of the input that are taken at once */

/* The product of rows of operands (``step`` bytes apart, at most TOGETHER) with 16 rows of the matrix, without bias. */
void kafila_tile(const matrix *m, long tile, const char *operand, long step, long rows, float out[TOGETHER][LANES]);

/* A product as a bfloat16 number of the result, with its bias. Beside a packed matrix the bias is a step of its own. */
INLINE uint16_t kafila_number(const matrix *m, long row, float product) {
  if (!m->bias) return narrow(product);
  return narrow((m->bits == 16 ? product : widen(narrow(product))) + widen(m->bias[row]));
}

#endif
