// Transposing while reducing: half the shuffles of four separate reductions, and a quarter of their
// latency.
#define REDUCE4(NAME, OP256, OP128)                                                                            \
    SIMD void NAME(int32_t* out, const I* x) {                                                                 \
        __m256i h[4];                                                                                          \
        for (int i = 0; i < 4; i++) h[i] = OP256(half0(x[i]), half1(x[i]));                                    \
        const __m256i ab = OP256(_mm256_unpacklo_epi32(h[0], h[1]), _mm256_unpackhi_epi32(h[0], h[1]));        \
        const __m256i cd = OP256(_mm256_unpacklo_epi32(h[2], h[3]), _mm256_unpackhi_epi32(h[2], h[3]));        \
        const __m256i abcd = OP256(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));              \
        _mm_storeu_si128((__m128i*)out, OP128(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1))); \
    }
REDUCE4(rmaxi4, _mm256_max_epi32, _mm_max_epi32)
REDUCE4(rsumi4, _mm256_add_epi32, _mm_add_epi32)
#undef REDUCE4

// The same for 8 rows folded to 4 lanes each: x [8][4] to the largest of each row, in 8 lanes.
SIMD __m256 rows_0_4(const float* x) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x)), _mm_loadu_ps(x + 16), 1);
}
template <class Op> SIMD F largest8(const float* x, Op op) {
    __m256 r[4], pairs[2];
    UNROLL for (int i = 0; i < 4; i++) r[i] = rows_0_4(x + 4 * i);
    UNROLL for (int i = 0; i < 2; i++)
        pairs[i] = op(_mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]), _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    const __m256d a = _mm256_castps_pd(pairs[0]), b = _mm256_castps_pd(pairs[1]);
    return low_half(op(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b))));
}
SIMD F rows_max(const float* x) {
    return largest8(x, [](__m256 a, __m256 b) { return _mm256_max_ps(a, b); });
}
SIMD F rows_max_bits(const float* x) {
    return largest8(x, [](__m256 a, __m256 b) {
        return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
    });
}
