// Dot products of what is stored (weights, K) with broadcast activations, over the lanes of simd.h.
#pragma once

#include "simd.h"

namespace fairlane {
namespace FL_ISA {

FL_INLINE uint32_t Word(const void* p) {
  uint32_t x;
  std::memcpy(&x, p, 4);
  return x;
}

// Pairs: 16 lanes of two neighbouring bf16 weights (64 bytes), dotted with one broadcast pair of activations.
#if defined(FL_AVX512)
struct PairW { __m512i bits; };
struct PairX { __m512i bits; };
FL_INLINE PairW LoadPairW(const uint16_t* p) { return {_mm512_loadu_si512(p)}; }
FL_INLINE PairX SplatPair(uint32_t pair) { return {_mm512_set1_epi32((int)pair)}; }
FL_INLINE F16 DotPair(const F16& acc, const PairW& w, const PairX& x) {
  F16 f;
  f.r[0] = _mm512_dpbf16_ps(acc.r[0], (__m512bh)w.bits, (__m512bh)x.bits);
  return f;
}
#else
struct PairW { vf low[kRegs], high[kRegs]; };
struct PairX { vf low, high; };
FL_INLINE PairW LoadPairW(const uint16_t* p) {
  PairW w;
  FL_EACH {
    const vu bits = LoadRaw<vu>(p + i * kBytes / 2);
    w.low[i] = (vf)(bits << 16);
    w.high[i] = (vf)(bits & 0xffff0000u);
  }
  return w;
}
FL_INLINE PairX SplatPair(uint32_t pair) { return {Splat(Bf16ToFloat((uint16_t)pair)), Splat(Bf16ToFloat((uint16_t)(pair >> 16)))}; }
FL_INLINE F16 DotPair(const F16& acc, const PairW& w, const PairX& x) {
  F16 f;
  FL_EACH f.r[i] = Fma(w.high[i], x.high, Fma(w.low[i], x.low, acc.r[i]));
  return f;
}
#endif

// Quads: 16 lanes of four unsigned bytes (64 bytes), dotted with four broadcast signed bytes. Exact in every set.
#if defined(FL_AVX512)
struct QuadW { __m512i bits; };
struct QuadX { __m512i bits; };
FL_INLINE QuadX SplatQuad(uint32_t quad) { return {_mm512_set1_epi32((int)quad)}; }
FL_INLINE I16 DotQuad(const I16& acc, const QuadW& w, const QuadX& x) {
  I16 v;
  v.r[0] = (vi)_mm512_dpbusd_epi32((__m512i)acc.r[0], w.bits, x.bits);
  return v;
}
FL_INLINE QuadW LoadQuadW(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
FL_INLINE void LoadNibbles(const uint8_t* p, QuadW* low, QuadW* high) {
  const __m512i bits = _mm512_loadu_si512(p), mask = _mm512_set1_epi8(15);
  low->bits = _mm512_and_si512(bits, mask);
  high->bits = _mm512_and_si512(_mm512_srli_epi16(bits, 4), mask);
}
#else
struct QuadW { vu bits[kRegs]; };
FL_INLINE QuadW LoadQuadW(const uint8_t* p) { QuadW w; FL_EACH w.bits[i] = LoadRaw<vu>(p + i * kBytes); return w; }
FL_INLINE void LoadNibbles(const uint8_t* p, QuadW* low, QuadW* high) {
  FL_EACH {
    const vu bits = LoadRaw<vu>(p + i * kBytes);
    low->bits[i] = bits & 0x0f0f0f0fu;
    high->bits[i] = (bits >> 4) & 0x0f0f0f0fu;
  }
}
#if defined(FL_AVX2)
struct QuadX { __m256i even, odd; };  // bytes 0 and 2, 1 and 3, widened to 16 bits
FL_INLINE QuadX SplatQuad(uint32_t quad) {
  const __m256i x = _mm256_set1_epi32((int)quad);
  return {_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)};
}
FL_INLINE I16 DotQuad(const I16& acc, const QuadW& w, const QuadX& x) {
  I16 v;
  FL_EACH {
    const __m256i bits = (__m256i)w.bits[i];
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(bits, _mm256_set1_epi16(255)), x.even);
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(bits, 8), x.odd);
    v.r[i] = acc.r[i] + (vi)_mm256_add_epi32(even, odd);
  }
  return v;
}
#else
struct QuadX { int32_t x[4]; };
FL_INLINE QuadX SplatQuad(uint32_t quad) {
  return {{(int8_t)quad, (int8_t)(quad >> 8), (int8_t)(quad >> 16), (int8_t)(quad >> 24)}};
}
FL_INLINE I16 DotQuad(const I16& acc, const QuadW& w, const QuadX& x) {
  I16 v;
  FL_EACH {
    const vu bits = w.bits[i];
    v.r[i] = acc.r[i] + (vi)(bits & 255u) * x.x[0] + (vi)((bits >> 8) & 255u) * x.x[1] + (vi)((bits >> 16) & 255u) * x.x[2] +
             (vi)(bits >> 24) * x.x[3];
  }
  return v;
}
#endif
#endif

// Signed quads: 16 lanes of four signed bytes (64 bytes), dotted with four broadcast 16-bit values. Exact in every set
// while the sums are: 256 products of 127 by 32767 fit.
#if defined(FL_AVX512)
struct WideW { __m512i even, odd; };  // bytes 0 and 2, 1 and 3, widened to 16 bits
struct WideX { __m512i even, odd; };
FL_INLINE WideW LoadWideW(const int8_t* p) {
  const __m512i bits = _mm512_loadu_si512(p);
  return {_mm512_srai_epi16(_mm512_slli_epi16(bits, 8), 8), _mm512_srai_epi16(bits, 8)};
}
FL_INLINE WideX SplatWide(uint32_t even, uint32_t odd) { return {_mm512_set1_epi32((int)even), _mm512_set1_epi32((int)odd)}; }
FL_INLINE I16 DotWide(const I16& acc, const WideW& w, const WideX& x) {
  I16 v;
  v.r[0] = (vi)_mm512_dpwssd_epi32(_mm512_dpwssd_epi32((__m512i)acc.r[0], w.even, x.even), w.odd, x.odd);
  return v;
}
#elif defined(FL_AVX2)
struct WideW { __m256i even[kRegs], odd[kRegs]; };
struct WideX { __m256i even, odd; };
FL_INLINE WideW LoadWideW(const int8_t* p) {
  WideW w;
  FL_EACH {
    const __m256i bits = _mm256_loadu_si256((const __m256i*)(p + i * kBytes));
    w.even[i] = _mm256_srai_epi16(_mm256_slli_epi16(bits, 8), 8);
    w.odd[i] = _mm256_srai_epi16(bits, 8);
  }
  return w;
}
FL_INLINE WideX SplatWide(uint32_t even, uint32_t odd) { return {_mm256_set1_epi32((int)even), _mm256_set1_epi32((int)odd)}; }
FL_INLINE I16 DotWide(const I16& acc, const WideW& w, const WideX& x) {
  I16 v;
  FL_EACH {
    const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(w.even[i], x.even), _mm256_madd_epi16(w.odd[i], x.odd));
    v.r[i] = acc.r[i] + (vi)sum;
  }
  return v;
}
#else
struct WideW { vi bits[kRegs]; };
struct WideX { int32_t x[4]; };
FL_INLINE WideW LoadWideW(const int8_t* p) { WideW w; FL_EACH w.bits[i] = LoadRaw<vi>(p + i * kBytes); return w; }
FL_INLINE WideX SplatWide(uint32_t even, uint32_t odd) {
  return {{(int16_t)even, (int16_t)odd, (int16_t)(even >> 16), (int16_t)(odd >> 16)}};
}
FL_INLINE I16 DotWide(const I16& acc, const WideW& w, const WideX& x) {
  I16 v;
  FL_EACH {
    const vi bits = w.bits[i];
    v.r[i] = acc.r[i] + ((bits << 24) >> 24) * x.x[0] + ((bits << 16) >> 24) * x.x[1] + ((bits << 8) >> 24) * x.x[2] + (bits >> 24) * x.x[3];
  }
  return v;
}
#endif

}  // namespace FL_ISA
}  // namespace fairlane
