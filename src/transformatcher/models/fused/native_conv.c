/* 4-D convolution of the candidate matches with zero padding, for CPUs: Conv4d of neighbourhood_consensus.py.

   A map lies in memory as (source cell, channel, plane). A plane holds the target cells, row by row, with `reach` zeros
   after each row, which are also those before the next row, and rows of zeros above and below. So a vector of matches is
   read for any tap without a test for the border, and the convolution is the same at all positions of a plane. What it
   gives between the rows is replaced by zeros.

   Over the source axes it is Winograd's F(2, 3): two neighbouring outputs of three taps, from four products, not six:

     y0 = x0 g0 + x1 g1 + x2 g2 = m0 + m1 + m2     m0 = (x0 - x2) g0     m1 = (x1 + x2) (g0 + g1 + g2) / 2
     y1 = x1 g0 + x2 g1 + x3 g2 = m1 - m2 + m3     m3 = (x3 - x1) g2     m2 = (x2 - x1) (g0 - g1 + g2) / 2

   Here the inputs x are all planes of a source cell, and a product is a 2-D convolution over the target. On both source
   axes together, that is 16 products for four outputs instead of 36. Other kernels, and the last row or column of an odd
   grid, take one product for each tap that is inside the grid. */

#include "native.h"

enum {
  MAX_KERNEL = 15,
  WIDE = 8,                       /* outputs at a time, one vector of weights for each tap */
  LONG = LANES == 4 ? 2 : 3,      /* vectors of matches at a time for WIDE outputs, one accumulator each */
  LONG_SINGLE = 8,                /* and for one output */
};

typedef struct {
  const float *x; /* (source cells, inputs, plane) */
  float *y;       /* (source cells, outputs, plane) */
  int64_t rows, columns; /* of source cells */
  int64_t inputs, outputs, kernel;
  int64_t plane;  /* numbers in a plane, a multiple of 16 */
  int64_t width;  /* of a row of a plane: target cells and zeros */
  int64_t length; /* positions from the first to the last target cell of a plane */
  const int32_t *inside; /* (length, rounded up to 16): -1 at target cells, 0 between the rows */
  /* (kinds, kinds, outputs, inputs · kernel²): of each product on both source axes. WIDE outputs lie side by side. */
  const float *weight;
  int64_t kinds;
  const float *bias; /* (outputs) */
  int64_t relu;
  const float *zeros; /* (inputs, plane): a source cell outside the grid */
  float *scratch;     /* (slots, 16 · inputs · plane) */
  int64_t scratch_size;
  int64_t *next; /* the next tile that nobody computes yet */
} Convolution;

/* One product on one source axis. */
typedef struct {
  int64_t cell;   /* of its input, before Winograd's sums */
  int kind;       /* of its weights */
  float share[2]; /* in the outputs: 1, -1 or 0 */
} Product;

/* The products for the outputs that begin at cell `first` of an axis with n cells; how many products. */
INLINE int plan(int64_t first, int64_t n, int kernel, Product *product) {
  if (kernel == 3 && first + 1 < n) {
    static const float share[4][2] = {{1, 0}, {1, 1}, {1, -1}, {0, 1}};
    for (int i = 0; i < 4; i++) product[i] = (Product){first - 1 + i, i, {share[i][0], share[i][1]}};
    return 4;
  }
  static const int kind_of_three[3] = {0, 4, 3}; /* the outer taps are those of two products above */
  int count = 0;
  for (int tap = 0; tap < kernel; tap++) {
    const int64_t cell = first + tap - kernel / 2;
    if (cell >= 0 && cell < n) product[count++] = (Product){cell, kernel == 3 ? kind_of_three[tap] : tap, {1, 0}};
  }
  return count;
}

/* Up to 2 × 2 source cells of outputs, and the products that they are sums of. */
typedef struct {
  int height, width;
  int products;
  const float *input[MAX_KERNEL * MAX_KERNEL]; /* (inputs, plane) */
  const float *weight[MAX_KERNEL * MAX_KERNEL];
  float share[MAX_KERNEL * MAX_KERNEL][4];
  float *output[4]; /* (outputs, plane) */
} Tile;

/* Winograd's sums of `down` × `right` inputs, on each axis that has four. */
INLINE void transform(const float *const *input, float *out, int64_t size, int64_t stride, const int down,
                      const int right) {
  for (int64_t at = 0; at < size; at += LANES) {
    vec x[16];
    for (int i = 0; i < down * right; i++) x[i] = load(input[i] + at, LANES);
    for (int axis = 0; axis < 2; axis++) {
      if ((axis ? down : right) != 4) continue;
      for (int i = 0; i < (axis ? right : down); i++) {
        vec *line = x + (axis ? i : 4 * i);
        const int step = axis ? right : 1;
        const vec first = line[0] - line[2 * step], second = line[step] + line[2 * step];
        line[3 * step] -= line[step];
        line[2 * step] -= line[step];
        line[0] = first;
        line[step] = second;
      }
    }
    for (int i = 0; i < down * right; i++) store(out + i * stride + at, x[i], LANES);
  }
}

INLINE void prepare(const Convolution *c, int64_t number, const int kernel, float *scratch, Tile *tile) {
  const int step = kernel == 3 ? 2 : 1;
  const int64_t across = (c->columns + step - 1) / step, row = number / across * step, column = number % across * step;
  const int64_t size = c->inputs * c->plane, matrix = c->outputs * c->inputs * kernel * kernel;
  Product vertical[MAX_KERNEL], horizontal[MAX_KERNEL];
  const int down = plan(row, c->rows, kernel, vertical), right = plan(column, c->columns, kernel, horizontal);
  tile->height = row + step <= c->rows ? step : 1;
  tile->width = column + step <= c->columns ? step : 1;
  tile->products = down * right;
  for (int i = 0; i < tile->height; i++)
    for (int j = 0; j < tile->width; j++)
      tile->output[2 * i + j] = c->y + ((row + i) * c->columns + column + j) * c->outputs * c->plane;
  for (int n = 0; n < down * right; n++) {
    const Product p = vertical[n / right], q = horizontal[n % right];
    const int inside = p.cell >= 0 && p.cell < c->rows && q.cell >= 0 && q.cell < c->columns;
    tile->input[n] = inside ? c->x + (p.cell * c->columns + q.cell) * size : c->zeros;
    tile->weight[n] = c->weight + (p.kind * c->kinds + q.kind) * matrix;
    for (int o = 0; o < 4; o++) tile->share[n][o] = p.share[o / 2] * q.share[o % 2];
  }
  if (tile->height == 1 && tile->width == 1) return;
  if (tile->height == 2 && tile->width == 2) transform(tile->input, scratch, size, size, 4, 4);
  else if (tile->width == 2)
    for (int i = 0; i < down; i++) transform(tile->input + 4 * i, scratch + 4 * i * size, size, size, 1, 4);
  else
    for (int j = 0; j < right; j++) {
      const float *column_of[4] = {tile->input[j], tile->input[right + j], tile->input[2 * right + j],
                                   tile->input[3 * right + j]};
      transform(column_of, scratch + j * size, size, right * size, 4, 1);
    }
  for (int n = 0; n < down * right; n++) tile->input[n] = scratch + n * size;
}

/* Outputs first … first + high - 1 of a tile, in `vectors` vectors of matches from `at` on. */
INLINE void block(const Convolution *c, const Tile *tile, int64_t first, int64_t at, const int kernel, const int high,
                  const int vectors) {
  vec sum[4][WIDE * LONG];
  for (int i = 0; i < high; i++)
    for (int o = 0; o < 4; o++)
      for (int v = 0; v < vectors; v++) sum[o][i * vectors + v] = splat(c->bias[first + i]);
  for (int p = 0; p < tile->products; p++) {
    const float *weight = tile->weight[p] + first * c->inputs * kernel * kernel, *x = tile->input[p] + at;
    vec acc[WIDE * LONG];
    for (int i = 0; i < high * vectors; i++) acc[i] = (vec){0};
    for (int64_t k = 0; k < c->inputs; k++, x += c->plane)
      for (int tap_row = 0; tap_row < kernel; tap_row++)
        for (int tap = 0; tap < kernel; tap++, weight += high) {
          vec match[LONG_SINGLE];
          for (int v = 0; v < vectors; v++) match[v] = load(x + tap_row * c->width + tap + v * LANES, LANES);
          for (int i = 0; i < high; i++)
            for (int v = 0; v < vectors; v++) acc[i * vectors + v] += weight[i] * match[v];
        }
    for (int o = 0; o < 4; o++) {
      const float share = tile->share[p][o];
      if (share != 0)
        for (int i = 0; i < high * vectors; i++) sum[o][i] += share * acc[i];
    }
  }
  const int64_t begin = kernel / 2 * (c->width + 1) + at;
  for (int o = 0; o < 4; o++) {
    if (o / 2 >= tile->height || o % 2 >= tile->width) continue;
    for (int v = 0; v < vectors; v++) {
      ivec inside;
      memcpy(&inside, c->inside + at + v * LANES, sizeof inside);
      for (int i = 0; i < high; i++) {
        vec value = sum[o][i * vectors + v];
        if (c->relu) value = select(value < 0, (vec){0}, value);
        store(tile->output[o] + (first + i) * c->plane + begin + v * LANES, select(inside, value, (vec){0}), LANES);
      }
    }
  }
}

INLINE void compute(const Convolution *c, const Tile *tile, const int kernel) {
  const int64_t vectors = (c->length + LANES - 1) / LANES;
  int64_t first = 0;
  for (; first + WIDE <= c->outputs; first += WIDE) {
    int64_t v = 0;
    for (; v + LONG <= vectors; v += LONG) block(c, tile, first, v * LANES, kernel, WIDE, LONG);
    if (LONG == 3 && v + 2 <= vectors) {
      block(c, tile, first, v * LANES, kernel, WIDE, 2);
      v += 2;
    }
    for (; v < vectors; v++) block(c, tile, first, v * LANES, kernel, WIDE, 1);
  }
  for (; first < c->outputs; first++) {
    int64_t v = 0;
    for (; v + LONG_SINGLE <= vectors; v += LONG_SINGLE) block(c, tile, first, v * LANES, kernel, 1, LONG_SINGLE);
    for (; v < vectors; v++) block(c, tile, first, v * LANES, kernel, 1, 1);
  }
  const int64_t begin = kernel / 2 * (c->width + 1), end = begin + vectors * LANES;
  for (int o = 0; o < 4; o++) {
    if (o / 2 >= tile->height || o % 2 >= tile->width) continue;
    for (int64_t i = 0; i < c->outputs; i++) {
      float *plane = tile->output[o] + i * c->plane;
      memset(plane, 0, begin * sizeof(float));
      memset(plane + end, 0, (c->plane - end) * sizeof(float));
    }
  }
}

/* Each slot has scratch memory of its own, and computes tiles until there are no more. */
EXPORT void NAMED(convolve, ISA)(const Convolution *c, int64_t first, int64_t last) {
  const int step = c->kernel == 3 ? 2 : 1;
  const int64_t tiles = ((c->rows + step - 1) / step) * ((c->columns + step - 1) / step);
  for (int64_t slot = first; slot < last; slot++)
    for (;;) {
      const int64_t number = __atomic_fetch_add(c->next, 1, __ATOMIC_RELAXED);
      if (number >= tiles) break;
      Tile tile;
      if (c->kernel == 3) {
        prepare(c, number, 3, c->scratch + slot * c->scratch_size, &tile);
        compute(c, &tile, 3);
      } else {
        prepare(c, number, c->kernel, c->scratch + slot * c->scratch_size, &tile);
        compute(c, &tile, c->kernel);
      }
    }
}
