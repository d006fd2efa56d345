// Sixteen lanes of floats or integers on whatever the instruction set has: one 512-bit, two 256-bit or four 128-bit
// registers. GCC's and Clang's vector extensions do the arithmetic on every target (64-bit Arm included); only the
// instructions that they cannot name (fused multiply-add here, dot products in dots.h) are written per set.
//
// This file is compiled once per instruction set inside the namespace FL_ISA. The build passes -ffp-contract=off:
// what is fused is said here, so that two unrollings of one formula round alike (batch invariance rests on it).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#define FL_AVX512 1
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__)
#define FL_AVX2 1
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace fairlane {
namespace FL_ISA {

constexpr int kLanes = 16;
#if defined(FL_AVX512)
constexpr int kBytes = 64;
constexpr int kMaxAccumulators = 24;  // of the 32 registers; what a kernel may keep open
#elif defined(FL_AVX2)
constexpr int kBytes = 32;
constexpr int kMaxAccumulators = 6;
#else
constexpr int kBytes = 16;
constexpr int kMaxAccumulators = 4;
#endif
constexpr int kRegs = 64 / kBytes;

typedef float vf __attribute__((vector_size(kBytes)));
typedef int32_t vi __attribute__((vector_size(kBytes)));
typedef uint32_t vu __attribute__((vector_size(kBytes)));
typedef uint16_t vh __attribute__((vector_size(kBytes / 2)));
typedef int16_t vs __attribute__((vector_size(kBytes / 2)));
typedef int8_t vb __attribute__((vector_size(kBytes / 4)));

#define FL_INLINE inline __attribute__((always_inline))
#define FL_EACH for (int i = 0; i < kRegs; ++i)

struct F16 {
  vf r[kRegs];
};
struct I16 {
  vi r[kRegs];
};

template <typename V, typename T>
FL_INLINE V LoadRaw(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

FL_INLINE vf Splat(float x) { return vf{} + x; }
FL_INLINE F16 Set(float x) { F16 f; FL_EACH f.r[i] = Splat(x); return f; }
FL_INLINE F16 Zero() { return Set(0.0f); }
FL_INLINE F16 Load(const float* p) { F16 f; FL_EACH f.r[i] = LoadRaw<vf>(p + i * kBytes / 4); return f; }
FL_INLINE void Store(float* p, const F16& f) { FL_EACH std::memcpy(p + i * kBytes / 4, &f.r[i], kBytes); }
FL_INLINE F16 operator+(const F16& a, const F16& b) { F16 f; FL_EACH f.r[i] = a.r[i] + b.r[i]; return f; }
FL_INLINE F16 operator-(const F16& a, const F16& b) { F16 f; FL_EACH f.r[i] = a.r[i] - b.r[i]; return f; }
FL_INLINE F16 operator*(const F16& a, const F16& b) { F16 f; FL_EACH f.r[i] = a.r[i] * b.r[i]; return f; }
FL_INLINE F16 operator/(const F16& a, const F16& b) { F16 f; FL_EACH f.r[i] = a.r[i] / b.r[i]; return f; }
FL_INLINE F16 Max(const F16& a, const F16& b) { F16 f; FL_EACH f.r[i] = a.r[i] > b.r[i] ? a.r[i] : b.r[i]; return f; }

FL_INLINE vf Fma(vf a, vf b, vf c) {
#if defined(FL_AVX512)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(FL_AVX2)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
FL_INLINE F16 Fma(const F16& a, const F16& b, const F16& c) { F16 f; FL_EACH f.r[i] = Fma(a.r[i], b.r[i], c.r[i]); return f; }

// Lanes are added as a fixed tree, so a sum never depends on the instruction set's shuffles.
FL_INLINE float Sum(const F16& f) {
  float x[kLanes];
  Store(x, f);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  return x[0];
}
FL_INLINE float Highest(const F16& f) {
  float x[kLanes];
  Store(x, f);
  float highest = x[0];
  for (int i = 1; i < kLanes; ++i) highest = x[i] > highest ? x[i] : highest;
  return highest;
}

// e^x: 2^n times a polynomial on [-ln2/2, ln2/2] (Cephes' expf), 2 ulp. Below -87.3 the answer is 0, above 88.3 it
// stays at 2^127; NaN stays NaN.
FL_INLINE vf Exp(vf x) {
  const vf high = Splat(88.3f), low = Splat(-87.3f);
  vf y = x > high ? high : x;
  y = y < low ? low : y;
  const vf shifted = Fma(y, Splat(1.44269504f), Splat(12582912.0f));
  const vf n = shifted - Splat(12582912.0f);
  vf r = Fma(n, Splat(-0.693359375f), y);
  r = Fma(n, Splat(2.12194440e-4f), r);
  vf p = Splat(1.9875691500e-4f);
  p = Fma(p, r, Splat(1.3981999507e-3f));
  p = Fma(p, r, Splat(8.3334519073e-3f));
  p = Fma(p, r, Splat(4.1665795894e-2f));
  p = Fma(p, r, Splat(1.6666665459e-1f));
  p = Fma(p, r, Splat(5.0000001201e-1f));
  p = Fma(p, r * r, r + Splat(1.0f));
  const vi exponent = ((vi)shifted - 0x4B400000 + 127) << 23;
  const vf result = p * (vf)exponent;
  return x < low ? vf{} : result;
}
FL_INLINE F16 Exp(const F16& x) { F16 f; FL_EACH f.r[i] = Exp(x.r[i]); return f; }

FL_INLINE float ScalarExp(float x) {
  const vf v = Exp(Splat(x));
  return v[0];
}

// bf16 is the upper half of an f32.
FL_INLINE F16 LoadBf16(const uint16_t* p) {
  F16 f;
#if defined(FL_AVX512)
  f.r[0] = (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif defined(FL_AVX2)
  FL_EACH f.r[i] = (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8 * i))), 16);
#else
  FL_EACH f.r[i] = (vf)(__builtin_convertvector(LoadRaw<vh>(p + i * kBytes / 4), vu) << 16);
#endif
  return f;
}

// Rounds to nearest even; NaN becomes a quiet NaN.
FL_INLINE void StoreBf16(uint16_t* p, const F16& f) {
  FL_EACH {
    const vu bits = (vu)f.r[i];
    const vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const vu nan = (bits >> 16) | 0x40u;
    const vu out = f.r[i] != f.r[i] ? nan : rounded;
#if defined(FL_AVX512)
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)out));
#else
    const vh half = __builtin_convertvector(out, vh);
    std::memcpy(p + i * kBytes / 4, &half, sizeof half);
#endif
  }
}

FL_INLINE float Bf16ToFloat(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// IEEE half to f32 by integer shifts and one exact product (scales of weights: finite).
FL_INLINE F16 LoadHalf(const uint16_t* p) {
  F16 f;
#if defined(FL_AVX512)
  f.r[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#else
  FL_EACH {
    const vu h = __builtin_convertvector(LoadRaw<vh>(p + i * kBytes / 4), vu);
    const vf magnitude = (vf)((h & 0x7fffu) << 13) * Splat(5.192296858534828e33f);  // 2^112
    f.r[i] = (vf)((vu)magnitude | ((h & 0x8000u) << 16));
  }
#endif
  return f;
}

FL_INLINE F16 ToFloat(const I16& x) { F16 f; FL_EACH f.r[i] = __builtin_convertvector(x.r[i], vf); return f; }
FL_INLINE I16 operator+(const I16& a, const I16& b) { I16 v; FL_EACH v.r[i] = a.r[i] + b.r[i]; return v; }
FL_INLINE int32_t Sum(const I16& v) {
  int32_t x[kLanes], sum = 0;
  FL_EACH std::memcpy(x + i * kBytes / 4, &v.r[i], kBytes);
  for (int i = 0; i < kLanes; ++i) sum += x[i];
  return sum;
}

// Nearest integers, even ones at halves; |x| below 2^22.
FL_INLINE I16 Round(const F16& x) {
  I16 v;
  FL_EACH v.r[i] = (vi)(x.r[i] + Splat(12582912.0f)) - 0x4B400000;
  return v;
}
FL_INLINE void StoreBytes(int8_t* p, const I16& v) {
#if defined(FL_AVX512)
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v.r[0]));
#else
  FL_EACH {
    const vb bytes = __builtin_convertvector(v.r[i], vb);
    std::memcpy(p + i * kBytes / 4, &bytes, sizeof bytes);
  }
#endif
}

FL_INLINE void StoreShorts(int16_t* p, const I16& v) {
#if defined(FL_AVX512)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)v.r[0]));
#else
  FL_EACH {
    const vs shorts = __builtin_convertvector(v.r[i], vs);
    std::memcpy(p + i * kBytes / 4, &shorts, sizeof shorts);
  }
#endif
}
FL_INLINE F16 LoadBytes(const int8_t* p) {
  I16 v;
#if defined(FL_AVX512)
  v.r[0] = (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(FL_AVX2)
  FL_EACH v.r[i] = (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8 * i)));
#else
  FL_EACH v.r[i] = __builtin_convertvector(LoadRaw<vb>(p + i * kBytes / 4), vi);
#endif
  return ToFloat(v);
}

FL_INLINE I16 SetInt(int32_t x) { I16 v; FL_EACH v.r[i] = vi{} + x; return v; }

}  // namespace FL_ISA
}  // namespace fairlane
