// 16 lanes: one zmm register. F and I are the 16-lane vectors that all row-wise code is written in;
// V is the native vector of the hot tiles (here the same).
typedef __m512 F;
typedef __m512i I;
typedef __mmask16 M;
typedef __m512 V;
enum { VW = 16 };

SIMD F zero() { return _mm512_setzero_ps(); }
SIMD F set1(float x) { return _mm512_set1_ps(x); }
SIMD F load(const float* p) { return _mm512_loadu_ps(p); }
SIMD void store(float* p, F x) { _mm512_storeu_ps(p, x); }
SIMD __mmask16 first(int64_t n) { return (__mmask16)((1u << n) - 1); }
SIMD F load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
SIMD void store_n(float* p, F x, int64_t n) { _mm512_mask_storeu_ps(p, first(n), x); }
SIMD F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
SIMD F max(F a, F b) { return _mm512_max_ps(a, b); } // b where either is NaN
SIMD F min(F a, F b) { return _mm512_min_ps(a, b); }
SIMD F root(F a) { return _mm512_sqrt_ps(a); }
SIMD F round_even(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
SIMD F abs(F a) { return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff))); }
SIMD I bits(F a) { return _mm512_castps_si512(a); }
SIMD F from_bits(I a) { return _mm512_castsi512_ps(a); }
SIMD I seti(int32_t x) { return _mm512_set1_epi32(x); }
SIMD I loadi(const int32_t* p) { return _mm512_loadu_si512(p); }
SIMD I addi(I a, I b) { return _mm512_add_epi32(a, b); }
SIMD I andi(I a, I b) { return _mm512_and_si512(a, b); }
SIMD I maxi(I a, I b) { return _mm512_max_epi32(a, b); }
template <int N> SIMD I shl(I a) { return _mm512_slli_epi32(a, N); }
SIMD I to_int(F a) { return _mm512_cvtps_epi32(a); }
SIMD F to_float(I a) { return _mm512_cvtepi32_ps(a); }
SIMD M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
SIMD M lessi(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }
SIMD M both(M a, M b) { return a & b; }
SIMD bool any(M m) { return m != 0; }
SIMD F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }

// Sums are taken in one order on every instruction set: halves of 8, of 4, of 2, of 1.
SIMD float rsum(F x) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
SIMD float first_lane(F x) { return _mm512_cvtss_f32(x); }
SIMD float rmax(F x) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
SIMD int32_t rmaxi(I x) { return _mm512_reduce_max_epi32(x); }
SIMD int32_t rsumi(I x) { return _mm512_reduce_add_epi32(x); }

// Of 8 lanes; the others are 0.
SIMD F low_half(__m256 x) { return _mm512_zextps256_ps512(x); }
SIMD F load8(const float* p) { return low_half(_mm256_loadu_ps(p)); }
SIMD void store8(float* p, F x) { _mm256_storeu_ps(p, _mm512_castps512_ps256(x)); }

// Four reductions at once, to out[0..3].
SIMD __m256i half0(I x) { return _mm512_castsi512_si256(x); }
SIMD __m256i half1(I x) { return _mm512_extracti64x4_epi64(x, 1); }
#include "reduce4.inl"

SIMD F load_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
SIMD F load_bf16(const uint16_t* p) {
    return from_bits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
SIMD float widen_f16(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
SIMD uint16_t narrow_f16(float x) { return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT)); }
SIMD void store_f16(uint16_t* p, F x) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
// 16 integers within int8's range to 16 bytes.
SIMD void store_s8(int8_t* p, I x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(x)); }

// Two halves of 8 lanes.
SIMD F load_halves(const float* low, const float* high) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(low)), _mm256_loadu_ps(high), 1);
}
SIMD void store_halves(float* low, float* high, F x) {
    _mm256_storeu_ps(low, _mm512_castps512_ps256(x));
    _mm256_storeu_ps(high, _mm512_extractf32x8_ps(x, 1));
}

SIMD V vzero() { return zero(); }
SIMD V vset1(float x) { return set1(x); }
SIMD V vload(const float* p) { return load(p); }
SIMD void vstore(float* p, V x) { store(p, x); }
SIMD V vfma(V a, V b, V c) { return fma(a, b, c); }
SIMD V vmul(V a, V b) { return _mm512_mul_ps(a, b); }
SIMD V vload_f16(const uint16_t* p) { return load_f16(p); }
SIMD V vload_bf16(const uint16_t* p) { return load_bf16(p); }

// VW pairs of 16-bit integers, and sums of their products.
typedef __m512i VI;
SIMD VI vizero() { return _mm512_setzero_si512(); }
SIMD VI viload(const int16_t* p) { return _mm512_loadu_si512(p); }
SIMD VI viload(const int8_t* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p)); }
SIMD VI vipair(const int16_t* p) { int32_t x; __builtin_memcpy(&x, p, 4); return _mm512_set1_epi32(x); }
// In its register: compilers copy each sum to another one, and back.
SIMD void vidot(VI& sum, VI x, VI y) { __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y)); }
SIMD void vikeep(VI&) {} // vidot's operands are in registers
SIMD V vi_float(VI x) { return _mm512_cvtepi32_ps(x); }
// 16 integers within int16's range to 16 of them.
SIMD void store_s16(int16_t* p, I x) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtsepi32_epi16(x)); }
// A row's lanes folded to four: at [4].
SIMD __m128 low4(__m256 h) { return _mm256_castps256_ps128(h); }
SIMD __m128 high4(__m256 h) { return _mm256_extractf128_ps(h, 1); }
SIMD void fold_max(float* at, F x) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    _mm_storeu_ps(at, _mm_max_ps(low4(h), high4(h)));
}
SIMD void fold_sum(float* at, F x) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    _mm_storeu_ps(at, _mm_add_ps(low4(h), high4(h)));
}
SIMD void fold_max_bits(float* at, I x) {
    const __m256i h = _mm256_max_epi32(half0(x), half1(x));
    _mm_storeu_si128((__m128i*)at, _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

SIMD void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
SIMD void prefetch_far(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); } // to the second-level cache
