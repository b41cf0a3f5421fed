// 16 lanes as two ymm registers. V, the native vector of the hot tiles, has 8.
struct F { __m256 a, b; };
struct I { __m256i a, b; };
struct M { __m256 a, b; };
typedef __m256 V;
enum { VW = 8 };

SIMD F operator+(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
SIMD F operator-(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
SIMD F operator*(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
SIMD F operator/(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
SIMD F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
SIMD F set1(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
SIMD F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SIMD void store(float* p, F x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
SIMD I first(int64_t n) {
    const __m256i count = _mm256_set1_epi32((int)n), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_cmpgt_epi32(count, lane), _mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8)))};
}
SIMD F load_n(const float* p, int64_t n) {
    I m = first(n);
    return {_mm256_maskload_ps(p, m.a), _mm256_maskload_ps(p + 8, m.b)};
}
SIMD void store_n(float* p, F x, int64_t n) {
    I m = first(n);
    _mm256_maskstore_ps(p, m.a, x.a);
    _mm256_maskstore_ps(p + 8, m.b, x.b);
}
SIMD F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
SIMD F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; } // y where either is NaN
SIMD F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
SIMD F root(F x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
SIMD F round_even(F x) {
    return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
SIMD F abs(F x) {
    const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
SIMD I bits(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
SIMD F from_bits(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
SIMD I seti(int32_t x) { __m256i v = _mm256_set1_epi32(x); return {v, v}; }
SIMD I loadi(const int32_t* p) { return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))}; }
SIMD I addi(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
SIMD I andi(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
SIMD I maxi(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
template <int N> SIMD I shl(I x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
SIMD I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
SIMD F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
SIMD M less(F x, F y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
SIMD M lessi(I x, I y) {
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(y.a, x.a)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(y.b, x.b))};
}
SIMD M both(M x, M y) { return {_mm256_and_ps(x.a, y.a), _mm256_and_ps(x.b, y.b)}; }
SIMD bool any(M m) { return _mm256_movemask_ps(_mm256_or_ps(m.a, m.b)) != 0; }
SIMD F select(M m, F yes, F no) { return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)}; }

// Sums are taken in one order on every instruction set: halves of 8, of 4, of 2, of 1.
SIMD float rsum(F x) {
    __m256 h = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
SIMD float first_lane(F x) { return _mm256_cvtss_f32(x.a); }
SIMD float rmax(F x) {
    __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
SIMD int32_t rmaxi(I x) {
    __m256i h = _mm256_max_epi32(x.a, x.b);
    __m128i q = _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
SIMD int32_t rsumi(I x) {
    __m256i h = _mm256_add_epi32(x.a, x.b);
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

// Of 8 lanes; the others are 0.
SIMD F low_half(__m256 x) { return {x, _mm256_setzero_ps()}; }
SIMD F load8(const float* p) { return low_half(_mm256_loadu_ps(p)); }
SIMD void store8(float* p, F x) { _mm256_storeu_ps(p, x.a); }

// Four reductions at once, to out[0..3].
SIMD __m256i half0(I x) { return x.a; }
SIMD __m256i half1(I x) { return x.b; }
#include "reduce4.inl"

SIMD V vzero() { return _mm256_setzero_ps(); }
SIMD V vset1(float x) { return _mm256_set1_ps(x); }
SIMD V vload(const float* p) { return _mm256_loadu_ps(p); }
SIMD void vstore(float* p, V x) { _mm256_storeu_ps(p, x); }
SIMD V vfma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
SIMD V vmul(V a, V b) { return _mm256_mul_ps(a, b); }
SIMD V vload_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
SIMD V vload_bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}

// VW pairs of 16-bit integers, and sums of their products.
typedef __m256i VI;
SIMD VI vizero() { return _mm256_setzero_si256(); }
SIMD VI viload(const int16_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
SIMD VI viload(const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)); }
SIMD VI vipair(const int16_t* p) { int32_t x; __builtin_memcpy(&x, p, 4); return _mm256_set1_epi32(x); }
// In its register: compilers move the additions together, and spill, or copy each sum to another one.
SIMD void vidot(VI& sum, VI x, VI y) {
#ifdef VNNI256
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(y));
#else
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(x, y)));
#endif
}
// For vidot's x, many times: where it is no operand of asm, compilers would load it again for each product, and there
// are fewer loads a cycle than that.
SIMD void vikeep([[maybe_unused]] VI& x) {
#ifndef VNNI256
    __asm__("" : "+x"(x));
#endif
}
SIMD V vi_float(VI x) { return _mm256_cvtepi32_ps(x); }
// 16 integers within int16's range to 16 of them.
SIMD void store_s16(int16_t* p, I x) {
    _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8));
}
// A row's lanes folded to four: at [4].
SIMD __m128 low4(__m256 h) { return _mm256_castps256_ps128(h); }
SIMD __m128 high4(__m256 h) { return _mm256_extractf128_ps(h, 1); }
SIMD void fold_max(float* at, F x) {
    const __m256 h = _mm256_max_ps(x.a, x.b);
    _mm_storeu_ps(at, _mm_max_ps(low4(h), high4(h)));
}
SIMD void fold_sum(float* at, F x) {
    const __m256 h = _mm256_add_ps(x.a, x.b);
    _mm_storeu_ps(at, _mm_add_ps(low4(h), high4(h)));
}
SIMD void fold_max_bits(float* at, I x) {
    const __m256i h = _mm256_max_epi32(half0(x), half1(x));
    _mm_storeu_si128((__m128i*)at, _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

SIMD void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
SIMD void prefetch_far(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); } // to the second-level cache

SIMD F load_f16(const uint16_t* p) { return {vload_f16(p), vload_f16(p + 8)}; }
SIMD F load_bf16(const uint16_t* p) { return {vload_bf16(p), vload_bf16(p + 8)}; }
SIMD float widen_f16(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
SIMD uint16_t narrow_f16(float x) { return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT)); }
SIMD void store_f16(uint16_t* p, F x) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
// 16 integers within int8's range to 16 bytes.
SIMD void store_s8(int8_t* p, I x) {
    __m256i h = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

// Two halves of 8 lanes.
SIMD F load_halves(const float* low, const float* high) { return {_mm256_loadu_ps(low), _mm256_loadu_ps(high)}; }
SIMD void store_halves(float* low, float* high, F x) { _mm256_storeu_ps(low, x.a); _mm256_storeu_ps(high, x.b); }
