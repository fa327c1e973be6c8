/* The two passes over the candidate matches, for CPUs: the same functions as pool() and update() in passes.py.

   All channels of LANES matches stay in vector registers from LayerNorm to the end of the MLP.

   Matches lie in memory as (pair, channel, source cell, target cell). A matrix acts on [x̂, 1]: a match after LayerNorm
   without gain and shift, with a one appended. Its rows have d + 1 numbers, the last one is the bias. */

#include "native.h"

enum {
  MAX_D = 64,      /* channels of a match */
  MAX_ROWS = 128,  /* rows of a matrix that depends on the position; heads */
  TILE = 320,      /* target cells at a time in the pooling pass; a multiple of LANES */
  BLOCK = 8,       /* rows of a matrix at a time, one accumulator each */
};

INLINE float sum(vec v) {
  float lane[LANES];
  memcpy(lane, &v, sizeof v);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) lane[i] += lane[i + width];
  return lane[0];
}

INLINE float highest(vec v, int64_t n) {
  float lane[LANES], top = -INFINITY;
  memcpy(lane, &v, sizeof v);
  for (int i = 0; i < LANES && i < n; i++) top = lane[i] > top ? lane[i] : top;
  return top;
}

/* exp(x) for x <= 0, to 2e-7 relative: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. */
INLINE vec exp_of_negative(vec x) {
  x = vmax(x, splat(-87.0f));
  vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounds to the nearest whole number */
  vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
  return p * (vec)power;
}

/* GELU: x times the normal distribution function, whose odd part is a polynomial in x² up to |x| = 5.2 and constant
   beyond. The error is below 2e-7 times the larger of |x| and 4. */
INLINE vec gelu(vec x) {
  static const float coefficient[] = {
      1.359499842e-01f, -6.774362177e-02f, 5.002561584e-02f, -3.993198648e-02f, 3.197391331e-02f,
      -2.469883859e-02f, 1.803878322e-02f, -1.261966582e-02f, 8.365073241e-03f, -4.542298615e-03f,
      2.005203627e-03f, -1.468788949e-03f, 1.188676804e-03f, -3.882291785e-04f};
  enum { TERMS = sizeof coefficient / sizeof *coefficient };
  const vec c = vmax(vmin(x, splat(5.2f)), splat(-5.2f)), z = c * c * (2.0f / (5.2f * 5.2f)) - 1.0f;
  vec p = splat(coefficient[TERMS - 1]);
  for (int i = TERMS - 2; i >= 0; i--) p = p * z + coefficient[i];
  return x * (p * c + 0.5f);
}

/* LayerNorm over d channels, without gain and shift. */
INLINE void normalise(const vec *x, vec *out, int d) {
  vec mean = {0}, variance = {0};
  for (int k = 0; k < d; k++) mean += x[k];
  mean *= 1.0f / d;
  for (int k = 0; k < d; k++) {
    out[k] = x[k] - mean;
    variance += out[k] * out[k];
  }
  variance = variance * (1.0f / d) + 1e-5f;
  float lane[LANES];
  memcpy(lane, &variance, sizeof variance);
  for (int i = 0; i < LANES; i++) lane[i] = 1.0f / sqrtf(lane[i]);
  memcpy(&variance, lane, sizeof variance);
  for (int k = 0; k < d; k++) out[k] *= variance;
}

/* out[j] += row j of a matrix times h, for n rows of d numbers that lie `stride` apart. */
INLINE void multiply(const float *matrix, int stride, const vec *h, int d, vec *out, int n) {
  int j = 0;
  for (; j + BLOCK <= n; j += BLOCK) {
    vec acc[BLOCK];
    for (int i = 0; i < BLOCK; i++) acc[i] = out[j + i];
    for (int k = 0; k < d; k++)
      for (int i = 0; i < BLOCK; i++) acc[i] += matrix[(j + i) * stride + k] * h[k];
    for (int i = 0; i < BLOCK; i++) out[j + i] = acc[i];
  }
  for (; j < n; j++)
    for (int k = 0; k < d; k++) out[j] += matrix[j * stride + k] * h[k];
}

/* out[k] += column k of a matrix (n rows of d numbers) times g. */
INLINE void multiply_transposed(const float *matrix, const vec *g, int n, vec *out, int d) {
  for (int k = 0; k < d; k++) {
    vec acc = out[k];
    for (int j = 0; j < n; j++) acc += matrix[j * d + k] * g[j];
    out[k] = acc;
  }
}

typedef struct {
  const float *x;
  float *y;
  int64_t d, sources, targets;
  const float *linear; /* (pairs, sources or 1, d, d + 1) */
  int64_t linear_by_source;
  int64_t rows;        /* of `inner`, two for each plane of rotation */
  const float *inner;  /* (sources or 1, rows, d + 1) */
  int64_t inner_by_source;
  const float *out;         /* (rows, d) */
  const float *cosine, *sine; /* (rows / 2, targets) */
  int64_t hidden;
  const float *weight1, *bias1; /* (hidden, d), (hidden) */
  const float *weight2, *bias2; /* (hidden, d): transposed; (d) */
} Update;

INLINE void update_cell(const Update *u, int64_t group, const int d, const int rows, const int hidden) {
  const int64_t pair = group / u->sources, source = group % u->sources, t = u->targets, stride = u->sources * t;
  const float *x = u->x + pair * d * stride + source * t;
  float *y = u->y + pair * d * stride + source * t;
  const float *linear = u->linear + (u->linear_by_source ? group : pair) * d * (d + 1);
  const float *inner = u->inner + (u->inner_by_source ? source : 0) * rows * (d + 1);
  for (int64_t i = 0; i < t; i += LANES) {
    const int64_t n = t - i;
    vec value[MAX_D], h[MAX_D];
    for (int k = 0; k < d; k++) value[k] = load(x + k * stride + i, n);
    normalise(value, h, d);
    for (int k = 0; k < d; k++) value[k] += linear[k * (d + 1) + d];
    multiply(linear, d + 1, h, d, value, d);
    for (int r = 0; r < rows; r += BLOCK) {
      vec turned[BLOCK];
      const int count = rows - r < BLOCK ? rows - r : BLOCK;
      for (int j = 0; j < count; j++) turned[j] = splat(inner[(r + j) * (d + 1) + d]);
      multiply(inner + r * (d + 1), d + 1, h, d, turned, count);
      for (int j = 0; j < count; j += 2) {
        const vec c = load(u->cosine + (r + j) / 2 * t + i, n), s = load(u->sine + (r + j) / 2 * t + i, n);
        const vec a = turned[j], b = turned[j + 1];
        turned[j] = c * a - s * b;
        turned[j + 1] = c * b + s * a;
      }
      multiply_transposed(u->out + r * d, turned, count, value, d);
    }
    normalise(value, h, d);
    for (int k = 0; k < d; k++) value[k] += u->bias2[k];
    for (int r = 0; r < hidden; r += BLOCK) {
      vec g[BLOCK];
      const int count = hidden - r < BLOCK ? hidden - r : BLOCK;
      for (int j = 0; j < count; j++) g[j] = splat(u->bias1[r + j]);
      multiply(u->weight1 + r * d, d, h, d, g, count);
      for (int j = 0; j < count; j++) g[j] = gelu(g[j]);
      multiply_transposed(u->weight2 + r * d, g, count, value, d);
    }
    for (int k = 0; k < d; k++) store(y + k * stride + i, value[k], n);
  }
}

/* Source cells first … last - 1 of all pairs, counted through. */
EXPORT void NAMED(update, ISA)(const Update *u, int64_t first, int64_t last) {
  const int common = u->d == 16 && u->hidden == 64;
  for (int64_t group = first; group < last; group++) {
    if (common && u->rows == 16) update_cell(u, group, 16, 16, 64);
    else if (common && u->rows == 0) update_cell(u, group, 16, 0, 64);
    else update_cell(u, group, u->d, u->rows, u->hidden);
  }
}

typedef struct {
  const float *x;
  int64_t d, sources, targets, heads;
  const float *scores; /* (pairs, sources or 1, heads, d + 1): the part of the scores that the target does not change */
  int64_t scores_by_source;
  int64_t rows;         /* whose sums depend on the target's position */
  const int32_t *head;  /* (rows), of each row */
  const float *feature; /* (rows, targets): the row's factor at each target cell */
  const float *factor;  /* (sources, rows): the row's factor at each source cell; NULL: 1 */
  const float *row_scores; /* (pairs, rows, d + 1), added to the head's score times both factors; NULL: none */
  int64_t want_source_sums;
  int64_t chunks;     /* of the source cells of a pair, each summed by itself */
  float *source_sums; /* (pairs, sources, heads, d + 1), relative to exp(source_top) */
  float *source_top;  /* (pairs, sources, heads): the highest score of each source cell */
  float *target_sums; /* (pairs, chunks, rows, d + 1), relative to exp(target_top) */
  float *target_top;  /* (pairs, chunks, heads) */
} Pool;

/* out (m, n) += a bᵀ for a (m, TILE) and b (n, TILE), over the first `vectors` vectors of a row. */
INLINE void accumulate(const float *a, int m, const float *b, int n, int vectors, float *out) {
  enum { A = 4, B = LANES == 16 ? 5 : 2 };
  for (int i = 0; i < m; i += A)
    for (int j = 0; j < n; j += B) {
      const int height = m - i < A ? m - i : A, width = n - j < B ? n - j : B;
      vec acc[A][B] = {{{0}}};
      if (height == A && width == B) {
        for (int v = 0; v < vectors; v++) {
          vec left[A];
          for (int p = 0; p < A; p++) memcpy(&left[p], a + (i + p) * TILE + v * LANES, sizeof(vec));
          for (int q = 0; q < B; q++) {
            vec right;
            memcpy(&right, b + (j + q) * TILE + v * LANES, sizeof(vec));
            for (int p = 0; p < A; p++) acc[p][q] += left[p] * right;
          }
        }
      } else {
        for (int v = 0; v < vectors; v++)
          for (int p = 0; p < height; p++)
            for (int q = 0; q < width; q++)
              acc[p][q] += load(a + (i + p) * TILE + v * LANES, LANES) * load(b + (j + q) * TILE + v * LANES, LANES);
      }
      for (int p = 0; p < height; p++)
        for (int q = 0; q < width; q++) out[(i + p) * n + j + q] += sum(acc[p][q]);
    }
}

INLINE void pool_tile(const Pool *p, int64_t pair, int64_t source, int64_t chunk, int64_t begin, int64_t length,
                      const int d, const int heads, const int rows) {
  static _Thread_local float h[(MAX_D + 1) * TILE] __attribute__((aligned(64)));
  static _Thread_local float weight[MAX_ROWS * TILE] __attribute__((aligned(64)));
  static _Thread_local float turned[MAX_ROWS * TILE] __attribute__((aligned(64)));
  const int64_t t = p->targets, stride = p->sources * t, group = pair * p->sources + source;
  const float *x = p->x + pair * d * stride + source * t + begin;
  const float *scores = p->scores + (p->scores_by_source ? group : pair) * heads * (d + 1);
  const float *row_scores = p->row_scores ? p->row_scores + pair * rows * (d + 1) : 0;
  const float *factor = p->factor ? p->factor + source * rows : 0;
  const int vectors = (length + LANES - 1) / LANES;
  vec top[MAX_ROWS];
  float peak[MAX_ROWS];
  for (int head = 0; head < heads; head++) peak[head] = -INFINITY;
  for (int v = 0; v < vectors; v++) {
    const int64_t n = length - v * LANES;
    vec value[MAX_D], normal[MAX_D], logit[MAX_ROWS];
    for (int k = 0; k < d; k++) value[k] = load(x + k * stride + v * LANES, n);
    normalise(value, normal, d);
    for (int k = 0; k < d; k++) memcpy(h + k * TILE + v * LANES, &normal[k], sizeof(vec));
    const vec one = splat(1.0f);
    memcpy(h + d * TILE + v * LANES, &one, sizeof(vec));
    for (int head = 0; head < heads; head++) logit[head] = splat(scores[head * (d + 1) + d]);
    multiply(scores, d + 1, normal, d, logit, heads);
    if (row_scores)
      for (int r = 0; r < rows; r += BLOCK) {
        vec extra[BLOCK];
        const int count = rows - r < BLOCK ? rows - r : BLOCK;
        for (int j = 0; j < count; j++) extra[j] = splat(row_scores[(r + j) * (d + 1) + d]);
        multiply(row_scores + r * (d + 1), d + 1, normal, d, extra, count);
        for (int j = 0; j < count; j++) {
          vec feature = load(p->feature + (r + j) * t + begin + v * LANES, n);
          if (factor) feature *= factor[r + j];
          logit[p->head[r + j]] += feature * extra[j];
        }
      }
    for (int head = 0; head < heads; head++) {
      memcpy(weight + head * TILE + v * LANES, &logit[head], sizeof(vec));
      if (n >= LANES) top[head] = v ? vmax(top[head], logit[head]) : logit[head];
      else {
        const float last = highest(logit[head], n);
        peak[head] = last > peak[head] ? last : peak[head];
      }
    }
  }
  float *source_top = p->source_top + group * heads, *source_sums = p->source_sums + group * heads * (d + 1);
  float *target_top = p->target_top + (pair * p->chunks + chunk) * heads;
  float *target_sums = p->target_sums + (pair * p->chunks + chunk) * rows * (d + 1);
  float share[MAX_ROWS], shrink[MAX_ROWS];
  for (int head = 0; head < heads; head++) {
    if (length >= LANES) {
      const float whole = highest(top[head], LANES);
      peak[head] = whole > peak[head] ? whole : peak[head];
    }
    const float before = source_top[head], now = peak[head] > before ? peak[head] : before;
    if (now > before)
      for (int k = 0; k <= d; k++) source_sums[head * (d + 1) + k] *= expf(before - now);
    source_top[head] = now;
    for (int v = 0; v < vectors; v++) {
      vec w;
      memcpy(&w, weight + head * TILE + v * LANES, sizeof w);
      w = exp_of_negative(w - now);
      const int64_t n = length - v * LANES;
      if (n < LANES) w = load((const float *)&w, n); /* zero beyond the last target cell */
      memcpy(weight + head * TILE + v * LANES, &w, sizeof w);
    }
    const float old = target_top[head], chunk_now = now > old ? now : old;
    target_top[head] = chunk_now;
    shrink[head] = expf(old - chunk_now);
    share[head] = expf(now - chunk_now);
  }
  if (p->want_source_sums) accumulate(weight, heads, h, d + 1, vectors, source_sums);
  else { /* the totals alone */
    float total[MAX_ROWS] = {0};
    accumulate(weight, heads, h + d * TILE, 1, vectors, total);
    for (int head = 0; head < heads; head++) source_sums[head * (d + 1) + d] += total[head];
  }
  for (int r = 0; r < rows; r++) {
    const int head = p->head[r];
    const float scale = share[head] * (factor ? factor[r] : 1.0f);
    if (shrink[head] != 1.0f)
      for (int k = 0; k <= d; k++) target_sums[r * (d + 1) + k] *= shrink[head];
    for (int v = 0; v < vectors; v++) {
      vec w;
      memcpy(&w, weight + head * TILE + v * LANES, sizeof w);
      w *= load(p->feature + r * t + begin + v * LANES, length - v * LANES) * scale;
      memcpy(turned + r * TILE + v * LANES, &w, sizeof w);
    }
  }
  accumulate(turned, rows, h, d + 1, vectors, target_sums);
}

INLINE void pool_chunk(const Pool *p, int64_t pair, int64_t chunk, const int d, const int heads, const int rows) {
  const int64_t first = chunk * p->sources / p->chunks, last = (chunk + 1) * p->sources / p->chunks;
  for (int64_t source = first; source < last; source++)
    for (int64_t begin = 0; begin < p->targets; begin += TILE) {
      const int64_t rest = p->targets - begin;
      pool_tile(p, pair, source, chunk, begin, rest < TILE ? rest : TILE, d, heads, rows);
    }
}

/* Chunks first … last - 1 of all pairs, counted through. Sums are zero before, and tops are -infinity. */
EXPORT void NAMED(pool, ISA)(const Pool *p, int64_t first, int64_t last) {
  const int common = p->d == 16 && p->heads == 8;
  for (int64_t number = first; number < last; number++) {
    const int64_t pair = number / p->chunks, chunk = number % p->chunks;
    if (common && p->rows == 16) pool_chunk(p, pair, chunk, 16, 8, 16);
    else if (common && p->rows == 0) pool_chunk(p, pair, chunk, 16, 8, 0);
    else if (common && p->rows == 8) pool_chunk(p, pair, chunk, 16, 8, 8);
    else pool_chunk(p, pair, chunk, p->d, p->heads, p->rows);
  }
}

/* Whether this CPU has the instructions that this copy of the functions was compiled for. */
EXPORT int NAMED(supported, ISA)(void) { return SUPPORTED; }
