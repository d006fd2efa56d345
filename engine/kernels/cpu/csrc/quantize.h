// Symmetric integers of a vector: x is about scale * q, |q| <= levels, rounded to nearest even.
#pragma once

#include "simd.h"

namespace fairlane {
namespace FL_ISA {

struct Grid {
  float inverse;  // 0: every q is 0
  float scale;    // NaN where a value is not finite
};

constexpr float kSmallest = 1e-30f;  // vectors below it are zeros: neither scale nor inverse may leave the floats

// `load(k)` gives values k..k + 15 of n.
template <typename LoadAt>
FL_INLINE Grid GridOf(const LoadAt& load, int64_t n, float levels) {
  F16 top = Zero(), zeros = Zero();
  for (int64_t k = 0; k < n; k += kLanes) {
    const F16 v = load(k);
    top = Max(Max(v, Zero() - v), top);
    zeros = Fma(v, Zero(), zeros);  // stays zero while all is finite
  }
  const float highest = Highest(top);
  if (Sum(zeros) != 0.0f) return {0.0f, NAN};
  if (highest < kSmallest) return {0.0f, 0.0f};
  return {levels / highest, highest / levels};
}

FL_INLINE I16 OnGrid(const F16& x, const Grid& grid) { return grid.inverse == 0.0f ? SetInt(0) : Round(x * Set(grid.inverse)); }

FL_INLINE auto LoadFrom(const uint16_t* p) {
  return [p](int64_t k) { return LoadBf16(p + k); };
}
FL_INLINE auto LoadFrom(const float* p) {
  return [p](int64_t k) { return Load(p + k); };
}

}  // namespace FL_ISA
}  // namespace fairlane
