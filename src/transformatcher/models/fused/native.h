/* What native.c and native_conv.c share: vectors of LANES floats, and functions named after the instruction set ISA.

   Both files are compiled once for each instruction set, with LANES and ISA defined by hatch_build.py. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define PASTE(name, isa) name##_##isa
#define NAMED(name, isa) PASTE(name, isa)
#define INLINE static inline __attribute__((always_inline))
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

INLINE vec splat(float a) { return (vec){0} + a; }

INLINE vec load(const float *at, int64_t n) {
  vec v = {0};
  if (n >= LANES) memcpy(&v, at, sizeof v);
  else memcpy(&v, at, n * sizeof(float));
  return v;
}

INLINE void store(float *at, vec v, int64_t n) {
  if (n >= LANES) memcpy(at, &v, sizeof v);
  else memcpy(at, &v, n * sizeof(float));
}

INLINE vec select(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }
INLINE vec vmax(vec a, vec b) { return select(a > b, a, b); }
INLINE vec vmin(vec a, vec b) { return select(a < b, a, b); }
