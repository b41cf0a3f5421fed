// Integer tiles with vpdpbusd on zmm: 16 rows x 4 products a lane; u8 weights by s8 activations.

// P panels at a time, `next` bytes apart: one broadcast of a token's quad serves them all. With one panel each product
// loads its own, and loads bind as much as products do.

struct U4 {
    enum : int64_t { bytes = 256, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 1, shifted = 0, grouped = 1 };
    // c[m][p] += the block's dot products. Nibbles are 0..15 as they are.
    template <int C, int P> SIMD void dot(const uint8_t* w, int64_t next, const int8_t* q, __m512i (&c)[C][P]) {
        const __m512i mask = _mm512_set1_epi8(15);
        UNROLL for (int j = 0; j < 4; j++) {
            __m512i low[P], high[P];
            UNROLL for (int p = 0; p < P; p++) {
                const __m512i v = _mm512_loadu_si512(w + p * next + 64 * j);
                low[p] = _mm512_and_si512(v, mask), high[p] = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
            }
            add_quad<C, P>(low, q, j, c);
            add_quad<C, P>(high, q, j + 4, c);
        }
    }
    template <int C, int P> SIMD void add_quad(const __m512i (&w)[P], const int8_t* q, int quad, __m512i (&c)[C][P]) {
        UNROLL for (int m = 0; m < C; m++) {
            const __m512i b = _mm512_set1_epi32(((const int32_t*)q)[quad * C + m]);
            UNROLL for (int p = 0; p < P; p++) c[m][p] = _mm512_dpbusd_epi32(c[m][p], w[p], b);
        }
    }
};

struct U5 { // as U4, each number with a fifth bit
    enum : int64_t { bytes = 320, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 0, shifted = 0, grouped = 0 };
    template <int C, int P> SIMD void dot(const uint8_t* w, int64_t next, const int8_t* q, __m512i (&c)[C][P]) {
        const __m512i mask = _mm512_set1_epi8(15), fifth = _mm512_set1_epi8(16);
        UNROLL for (int i = 0; i < 8; i++) { // low and high nibbles in turn: of both there are not registers enough
            const int j = i / 2, high = i % 2;
            __m512i x[P];
            UNROLL for (int p = 0; p < P; p++) {
                const __m512i v = _mm512_loadu_si512(w + p * next + 64 * j), bits = _mm512_loadu_si512(w + p * next + 256);
                x[p] = high ? numbers(_mm512_srli_epi16(v, 4), _mm512_srli_epi16(bits, j), mask, fifth)
                            : numbers(v, _mm512_slli_epi16(bits, 4 - j), mask, fifth);
            }
            U4::add_quad<C, P>(x, q, j + 4 * high, c);
        }
    }
    SIMD __m512i numbers(__m512i v, __m512i bits, __m512i mask, __m512i fifth) {
        return _mm512_ternarylogic_epi32(_mm512_and_si512(v, mask), bits, fifth, 0xf8); // a | (b & c)
    }
};

struct U6 { // half a block of K6
    enum : int64_t { bytes = 384, part_bytes = 192, parts = 2, quads = 4, dot_by_scale = 0, shifted = 0, grouped = 0 };
    template <int C, int P> SIMD void dot(const uint8_t* w, int64_t next, const int8_t* q, __m512i (&c)[C][P]) {
        const __m512i mask = _mm512_set1_epi8(15), high = _mm512_set1_epi8(48);
        UNROLL for (int j = 0; j < 4; j++) {
            __m512i x[P];
            UNROLL for (int p = 0; p < P; p++) {
                const __m512i v = _mm512_loadu_si512(w + p * next + 64 * (j % 2)), pairs = _mm512_loadu_si512(w + p * next + 128);
                const __m512i bits = j < 2 ? _mm512_slli_epi16(pairs, 4 - 2 * j) : _mm512_srli_epi16(pairs, 2 * j - 4);
                x[p] = U5::numbers(j < 2 ? v : _mm512_srli_epi16(v, 4), bits, mask, high);
            }
            U4::add_quad<C, P>(x, q, j, c);
        }
    }
};

struct C4 { // U4's bytes, each nibble the code of a number, which becomes u8 as S8 does
    enum : int64_t { bytes = 256, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 0, shifted = 1, grouped = 0 };
    template <int C, int P> SIMD void dot(const uint8_t* w, int64_t next, const int8_t* q, __m512i (&c)[C][P]) {
        const __m512i mask = _mm512_set1_epi8(15);
        const __m512i code = _mm512_xor_si512(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)kIQ4)), _mm512_set1_epi8((char)0x80));
        UNROLL for (int i = 0; i < 8; i++) {
            const int j = i / 2, high = i % 2;
            __m512i x[P];
            UNROLL for (int p = 0; p < P; p++) {
                const __m512i v = _mm512_loadu_si512(w + p * next + 64 * j);
                x[p] = _mm512_shuffle_epi8(code, _mm512_and_si512(high ? _mm512_srli_epi16(v, 4) : v, mask));
            }
            U4::add_quad<C, P>(x, q, j + 4 * high, c);
        }
    }
};

template <int QUADS, bool SHIFTED = false> struct S8Quads { // one part
    enum : int64_t { bytes = 512, part_bytes = QUADS * 64, parts = 8 / QUADS, quads = QUADS, dot_by_scale = 0, shifted = 1, grouped = QUADS == 8 && !SHIFTED };
    // Weights become u8 by flipping the sign bit, that is, adding 128 (or are: SHIFTED): c starts at -128 * sum of q.
    template <int C, int P> SIMD void dot(const uint8_t* w, int64_t next, const int8_t* q, __m512i (&c)[C][P]) {
        const __m512i flip = _mm512_set1_epi8((char)0x80);
        UNROLL for (int j = 0; j < QUADS; j++) {
            __m512i v[P];
            UNROLL for (int p = 0; p < P; p++) {
                v[p] = _mm512_loadu_si512(w + p * next + 64 * j);
                if (!SHIFTED) v[p] = _mm512_xor_si512(v[p], flip);
            }
            U4::add_quad<C, P>(v, q, j, c);
        }
    }
};

using S8 = S8Quads<8>;
using S8By16 = S8Quads<4>;
using S8Joined = S8Quads<8, true>;

template <int TABLES> SIMD __m512 block_scales(const uint8_t* table, const uint8_t* steps) {
    if (TABLES == kSingle) return load((const float*)table);
    const __m512 x = load_f16((const uint16_t*)table);
    return TABLES == kSteps ? x * to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)steps))) : x;
}

template <int TABLES, int MIN> SIMD __m512 block_minima(__m512 s, const uint8_t* table, const uint8_t* steps) {
    if (MIN == kMinima) return block_scales<TABLES>(table, steps);
    return (zero() - s) * to_float(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)table)));
}

template <int C, class W, int TABLES, int MIN, int P>
__attribute__((noinline)) void dot_panel(const uint8_t* w, int64_t next, const int8_t* q, const float* d, const float* u,
                                         const int32_t* sum, int64_t blocks, int64_t group, Ahead ahead, float* out) {
    constexpr int64_t bytes = W::bytes + steps_of(TABLES, W::parts, MIN), size = tables_of(TABLES, W::parts, MIN);
    constexpr int64_t table = TABLES == kSteps ? 0 : table_bytes(TABLES == kSingle); // from part to part
    constexpr int64_t minima = tables_of(TABLES, W::parts, kNoMinima);
    Blocks<W::grouped || TABLES == kSteps> at{.w = w, .group = group};
    __m512 z[C][P];
    UNROLL for (int m = 0; m < C; m++)
        UNROLL for (int p = 0; p < P; p++) z[m][p] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, d += C, u += C) {
        prefetch_next<C>(ahead);
        at.begin(bytes);
        const uint8_t *scales = at.tables, *steps = at.w + W::bytes;
        UNROLL for (int part = 0; part < W::parts; part++, q += W::quads * 4 * C, sum += C) {
            __m512i c[C][P];
            UNROLL for (int m = 0; m < C; m++)
                UNROLL for (int p = 0; p < P; p++) c[m][p] = MIN && !W::shifted ? _mm512_setzero_si512() : _mm512_set1_epi32(sum[m]);
            W::template dot<C, P>(at.w + part * W::part_bytes, next, q, c);
            __m512 s[P], n[P];
            UNROLL for (int p = 0; p < P; p++) {
                s[p] = block_scales<TABLES>(scales + p * next + part * table, steps + p * next + part * kPanel);
                if (MIN) n[p] = block_minima<TABLES, MIN>(s[p], scales + p * next + minima, steps + p * next + kPanel); // never with two parts
            }
            UNROLL for (int m = 0; m < C; m++) {
                const __m512 scale = _mm512_set1_ps(d[m]), offset = _mm512_set1_ps(MIN ? u[m] : 0.0f);
                UNROLL for (int p = 0; p < P; p++) {
                    const __m512 dot = to_float(c[m][p]);
                    if (!W::dot_by_scale) z[m][p] = fma(dot, s[p] * scale, z[m][p]);
                    if (MIN) z[m][p] = fma(n[p], offset, z[m][p]);
                    if (W::dot_by_scale) z[m][p] = fma(dot * s[p], scale, z[m][p]);
                }
            }
        }
        at.next(bytes, size);
    }
    UNROLL for (int p = 0; p < P; p++)
        UNROLL for (int m = 0; m < C; m++) store(out + (p * C + m) * 16, z[m][p]);
}
