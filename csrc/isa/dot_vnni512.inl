// Integer tiles with vpdpbusd on zmm: 16 rows x 4 products a lane; u8 weights by s8 activations.

struct U4 {
    enum : int64_t { bytes = 256, parts = 1, quads = 8, shifted = 0 };
    // c[m] += the block's dot products. Nibbles are 0..15 as they are.
    template <int C> SIMD void dot(const uint8_t* w, const int8_t* q, __m512i (&c)[C]) {
        const __m512i mask = _mm512_set1_epi8(15);
        UNROLL for (int j = 0; j < 4; j++) {
            const __m512i v = _mm512_loadu_si512(w + 64 * j);
            const __m512i low = _mm512_and_si512(v, mask), high = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
            UNROLL for (int m = 0; m < C; m++) c[m] = _mm512_dpbusd_epi32(c[m], low, quad(q, j * C + m));
            UNROLL for (int m = 0; m < C; m++) c[m] = _mm512_dpbusd_epi32(c[m], high, quad(q, (j + 4) * C + m));
        }
    }
    SIMD __m512i quad(const int8_t* q, int i) { return _mm512_set1_epi32(((const int32_t*)q)[i]); }
};

struct U5 { // as U4, each number with a fifth bit
    enum : int64_t { bytes = 320, parts = 1, quads = 8, shifted = 0 };
    template <int C> SIMD void dot(const uint8_t* w, const int8_t* q, __m512i (&c)[C]) {
        const __m512i mask = _mm512_set1_epi8(15), fifth = _mm512_set1_epi8(16);
        const __m512i bits = _mm512_loadu_si512(w + 256);
        UNROLL for (int j = 0; j < 4; j++) {
            const __m512i v = _mm512_loadu_si512(w + 64 * j);
            const __m512i low = numbers(v, _mm512_slli_epi16(bits, 4 - j), mask, fifth);
            const __m512i high = numbers(_mm512_srli_epi16(v, 4), _mm512_srli_epi16(bits, j), mask, fifth);
            UNROLL for (int m = 0; m < C; m++) c[m] = _mm512_dpbusd_epi32(c[m], low, U4::quad(q, j * C + m));
            UNROLL for (int m = 0; m < C; m++) c[m] = _mm512_dpbusd_epi32(c[m], high, U4::quad(q, (j + 4) * C + m));
        }
    }
    SIMD __m512i numbers(__m512i v, __m512i bits, __m512i mask, __m512i fifth) {
        return _mm512_ternarylogic_epi32(_mm512_and_si512(v, mask), bits, fifth, 0xf8); // a | (b & c)
    }
};

template <int QUADS> struct S8Quads { // one part
    enum : int64_t { bytes = 512, parts = 8 / QUADS, quads = QUADS, shifted = 1 };
    // Weights become u8 by flipping the sign bit, that is, adding 128: c starts at -128 * sum of q.
    template <int C> SIMD void dot(const uint8_t* w, const int8_t* q, __m512i (&c)[C]) {
        const __m512i flip = _mm512_set1_epi8((char)0x80);
        UNROLL for (int j = 0; j < QUADS; j++) {
            const __m512i v = _mm512_xor_si512(_mm512_loadu_si512(w + 64 * j), flip);
            UNROLL for (int m = 0; m < C; m++) c[m] = _mm512_dpbusd_epi32(c[m], v, U4::quad(q, j * C + m));
        }
    }
};

using S8 = S8Quads<8>;
using S8By16 = S8Quads<4>;

template <bool WIDE> SIMD __m512 block_scales(const uint8_t* table) {
    return WIDE ? load((const float*)table) : load_f16((const uint16_t*)table);
}

template <int C, class W, bool WIDE, bool MIN>
__attribute__((noinline)) void dot_panel(const uint8_t* w, const int8_t* q, const float* d, const float* u,
                                         const int32_t* sum, int64_t blocks, float* out) {
    constexpr int64_t table = WIDE ? 64 : 32, step = W::bytes + table * (W::parts + MIN);
    __m512 z[C];
    UNROLL for (int m = 0; m < C; m++) z[m] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, w += step, d += C, u += C) {
        if (C == 1) prefetch_block(w, step);
        const uint8_t* scales = w + W::bytes;
        UNROLL for (int part = 0; part < W::parts; part++, q += W::quads * 4 * C, sum += C) {
            __m512i c[C];
            UNROLL for (int m = 0; m < C; m++)
                c[m] = MIN && !W::shifted ? _mm512_setzero_si512() : _mm512_set1_epi32(sum[m]);
            W::template dot<C>(w + part * W::quads * 64, q, c);
            const __m512 s = block_scales<WIDE>(scales + part * table);
            UNROLL for (int m = 0; m < C; m++)
                z[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c[m]), _mm512_mul_ps(s, _mm512_set1_ps(d[m])), z[m]);
        }
        if (MIN) {
            const __m512 n = block_scales<WIDE>(scales + W::parts * table);
            UNROLL for (int m = 0; m < C; m++) z[m] = _mm512_fmadd_ps(n, _mm512_set1_ps(u[m]), z[m]);
        }
    }
    UNROLL for (int m = 0; m < C; m++) store(out + m * 16, z[m]);
}
