// Integer tiles on ymm registers, two per 16 rows.
//
// AVX2: vpmaddubsw adds pairs of u8 x s8 in int16. For nibbles a block of 32 fits: 16 products of at
// most 15 x 127 add up to 30,480 in each int16 lane, so it is widened once a block. With bytes a
// pair alone is up to 32,512 (the weight's sign is moved to the activation: |w| x sign(q, w)), so
// each is widened at once.
// VNNI256: vpdpbusd does all of it in one instruction.

#ifdef VNNI256
#define DPBUSD(c, w, q) VNNI256(c, w, q)
#endif
// Compilers reorder and spill accumulators to save nothing: an empty asm pins them where they are.
#define KEEP(x) __asm__("" : "+x"(x))

SIMD __m256i quad(const int8_t* q, int i) { return _mm256_set1_epi32(((const int32_t*)q)[i]); }

SIMD __m256i load_rows(const uint8_t* w, int quad, int half) { return _mm256_loadu_si256((const __m256i*)(w + 64 * quad + 32 * half)); }
SIMD __m256i nibbles(__m256i v, int quad) { return _mm256_and_si256(quad < 4 ? v : _mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)); }
SIMD __m256i with_fifth(__m256i low, __m256i bits, int quad) {
    const __m256i bit = quad < 4 ? _mm256_slli_epi16(bits, 4 - quad) : _mm256_srli_epi16(bits, quad - 4);
    return _mm256_or_si256(low, _mm256_and_si256(bit, _mm256_set1_epi8(16)));
}

// EXPANDED: a byte to each weight and tables of f32, as expand_panel writes them. FIFTH: with fifth bits that lie apart, and sums
// that start so that they end within int16 all the same (screen.inl).
template <bool EXPANDED, bool FIFTH = false> struct U4Quads {
    enum : int64_t { bytes = EXPANDED ? 512 : 256, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 1, apart = FIFTH, grouped = !EXPANDED && !FIFTH, by_rows = 0 };
    SIMD __m256i weights(const uint8_t* w, int quad, int half, [[maybe_unused]] const uint8_t* fifth = nullptr) {
        const __m256i v = load_rows(w, EXPANDED ? quad : quad % 4, half);
        if (EXPANDED) return v;
        return FIFTH ? with_fifth(nibbles(v, quad), load_rows(fifth, 0, half), quad) : nibbles(v, quad);
    }
    template <int C, bool MIN>
    SIMD void dot(const uint8_t* w, const int8_t* q, [[maybe_unused]] const int32_t* sum, __m256i (&c)[C][2], const uint8_t* fifth = nullptr) {
#ifdef VNNI256
        UNROLL for (int m = 0; m < C; m++)
            c[m][0] = c[m][1] = MIN ? _mm256_setzero_si256() : _mm256_set1_epi32(sum[m]);
#endif
        UNROLL for (int j = 0; j < 8; j++) {
            const int i = j / 2 + j % 2 * 4; // the quads of low and high nibbles of the same bytes
            const __m256i w0 = weights(w, i, 0, fifth), w1 = weights(w, i, 1, fifth);
            UNROLL for (int m = 0; m < C; m++) {
                const __m256i b = quad(q, i * C + m);
#ifdef VNNI256
                c[m][0] = DPBUSD(c[m][0], w0, b);
                c[m][1] = DPBUSD(c[m][1], w1, b);
#else
                const __m256i p0 = _mm256_maddubs_epi16(w0, b), p1 = _mm256_maddubs_epi16(w1, b);
                const __m256i start = _mm256_set1_epi32(MIN || j ? 0 : sum[m]); // prepare.inl, start_of
                c[m][0] = MIN && !j ? p0 : _mm256_add_epi16(j ? c[m][0] : start, p0);
                c[m][1] = MIN && !j ? p1 : _mm256_add_epi16(j ? c[m][1] : start, p1);
#endif
                KEEP(c[m][0]);
                KEEP(c[m][1]);
            }
        }
    }
    SIMD __m256i widened(__m256i c) {
#ifdef VNNI256
        return c;
#else
        return _mm256_madd_epi16(c, _mm256_set1_epi16(1));
#endif
    }
};
using U4 = U4Quads<false>;
using U5Lanes = U4Quads<false, true>;

// As U4, each number with a fifth bit. Half a block, 8 products of at most 31 x 127, adds up to 31,496 in int16.
// One half of the rows after the other: the registers do not hold both halves' int16 and int32 sums.
template <bool EXPANDED> struct U5Quads {
    enum : int64_t { bytes = EXPANDED ? 512 : 320, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 0, grouped = 0, by_rows = 1 };
    SIMD __m256i weights(const uint8_t* w, __m256i bits, int quad, int rows) {
        const __m256i v = load_rows(w, EXPANDED ? quad : quad % 4, rows);
        return EXPANDED ? v : with_fifth(nibbles(v, quad), bits, quad);
    }
    SIMD __m256i fifth_bits(const uint8_t* w, int rows) { return EXPANDED ? _mm256_setzero_si256() : load_rows(w, 4, rows); }
    template <int C, bool MIN> SIMD void dot(const uint8_t* w, const int8_t* q, [[maybe_unused]] const int32_t* sum, __m256i (&c)[C], int rows) {
        const __m256i bits = fifth_bits(w, rows);
        UNROLL for (int m = 0; m < C; m++) c[m] = MIN ? _mm256_setzero_si256() : _mm256_set1_epi32(sum[m]);
        UNROLL for (int half = 0; half < 2; half++) {
            [[maybe_unused]] __m256i lanes[C];
            UNROLL for (int j = 0; j < 4; j++) {
                const __m256i x = weights(w, bits, j + 4 * half, rows);
                UNROLL for (int m = 0; m < C; m++) {
                    const __m256i b = quad(q, (j + 4 * half) * C + m);
#ifdef VNNI256
                    c[m] = DPBUSD(c[m], x, b);
                    KEEP(c[m]);
#else
                    const __m256i p = _mm256_maddubs_epi16(x, b);
                    lanes[m] = j ? _mm256_add_epi16(lanes[m], p) : p;
                    KEEP(lanes[m]);
#endif
                }
            }
#ifndef VNNI256
            const __m256i ones = _mm256_set1_epi16(1);
            UNROLL for (int m = 0; m < C; m++) {
                c[m] = _mm256_add_epi32(c[m], _mm256_madd_epi16(lanes[m], ones));
                KEEP(c[m]);
            }
#endif
        }
    }
};

using U5 = U5Quads<false>;

#ifdef VNNI256
enum : int64_t { BYTES_BY_ROWS = 0 };
// Quad j of C tokens to the sums of both halves of the rows.
template <int C> SIMD void add_quads(__m256i w0, __m256i w1, const int8_t* q, int j, __m256i (&c)[C][2]) {
    UNROLL for (int m = 0; m < C; m++) {
        const __m256i b = quad(q, j * C + m);
        c[m][0] = DPBUSD(c[m][0], w0, b);
        c[m][1] = DPBUSD(c[m][1], w1, b);
        KEEP(c[m][0]);
        KEEP(c[m][1]);
    }
}
#else
enum : int64_t { BYTES_BY_ROWS = 1 };
#endif

// Half a block of K6. 4 products of at most 63 x 127 add up to 32,004 in int16. AVX2 takes one half of the rows after the other, as U5;
// with VNNI256 the registers hold both, and each token's quad is loaded once for them.
template <bool EXPANDED> struct U6Quads {
    enum : int64_t { bytes = EXPANDED ? 512 : 384, part_bytes = bytes / 2, parts = 2, quads = 4, dot_by_scale = 0, grouped = 0, by_rows = BYTES_BY_ROWS };
    SIMD __m256i weights(const uint8_t* w, __m256i pairs, int quad, int rows) {
        const __m256i v = load_rows(w, EXPANDED ? quad : quad % 2, rows);
        if (EXPANDED) return v;
        const __m256i bits = quad < 2 ? _mm256_slli_epi16(pairs, 4 - 2 * quad) : _mm256_srli_epi16(pairs, 2 * quad - 4);
        return _mm256_or_si256(nibbles(v, quad < 2 ? 0 : 4), _mm256_and_si256(bits, _mm256_set1_epi8(48)));
    }
    SIMD __m256i pairs_of_bits(const uint8_t* w, int rows) { return EXPANDED ? _mm256_setzero_si256() : load_rows(w, 2, rows); }
#ifdef VNNI256
    template <int C, bool MIN> SIMD void dot(const uint8_t* w, const int8_t* q, const int32_t* sum, __m256i (&c)[C][2]) {
        UNROLL for (int m = 0; m < C; m++) c[m][0] = c[m][1] = _mm256_set1_epi32(sum[m]);
        UNROLL for (int j = 0; j < 4; j++) {
            __asm__("" : "+r"(w)); // or the pairs stay in two registers, which there are not beside the sums
            __m256i w0 = weights(w, pairs_of_bits(w, 0), j, 0);
            KEEP(w0);
            __m256i w1 = weights(w, pairs_of_bits(w, 1), j, 1);
            KEEP(w1);
            add_quads<C>(w0, w1, q, j, c);
        }
    }
    SIMD __m256i widened(__m256i c) { return c; }
#else
    template <int C, bool MIN> SIMD void dot(const uint8_t* w, const int8_t* q, const int32_t* sum, __m256i (&c)[C], int rows) {
        const __m256i pairs = pairs_of_bits(w, rows);
        UNROLL for (int m = 0; m < C; m++) c[m] = _mm256_set1_epi32(sum[m]);
        UNROLL for (int j = 0; j < 4; j += 2) {
            const __m256i x0 = weights(w, pairs, j, rows), x1 = weights(w, pairs, j + 1, rows);
            UNROLL for (int m = 0; m < C; m++) {
                const __m256i b0 = quad(q, j * C + m), b1 = quad(q, (j + 1) * C + m);
                const __m256i p = _mm256_add_epi16(_mm256_maddubs_epi16(x0, b0), _mm256_maddubs_epi16(x1, b1));
                c[m] = _mm256_add_epi32(c[m], _mm256_madd_epi16(p, _mm256_set1_epi16(1)));
                KEEP(c[m]);
            }
        }
    }
#endif
};

using U6 = U6Quads<false>;

// U4's bytes, each nibble the code of a number, which is met as S8. Rows as U6's.
struct C4 {
    enum : int64_t { bytes = 256, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 0, grouped = 0, by_rows = BYTES_BY_ROWS };
    SIMD __m256i code() { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)kIQ4)); }
    SIMD __m256i weights(const uint8_t* w, __m256i numbers, int quad, int rows) {
        return _mm256_shuffle_epi8(numbers, nibbles(load_rows(w, quad % 4, rows), quad));
    }
#ifdef VNNI256
    template <int C, bool MIN> SIMD void dot(const uint8_t* w, const int8_t* q, const int32_t* sum, __m256i (&c)[C][2]) {
        const __m256i numbers = _mm256_xor_si256(code(), _mm256_set1_epi8((char)0x80)); // to u8
        UNROLL for (int m = 0; m < C; m++) c[m][0] = c[m][1] = _mm256_set1_epi32(sum[m]);
        UNROLL for (int j = 0; j < 8; j++) add_quads<C>(weights(w, numbers, j, 0), weights(w, numbers, j, 1), q, j, c);
    }
    SIMD __m256i widened(__m256i c) { return c; }
#else
    template <int C, bool MIN> SIMD void dot(const uint8_t* w, const int8_t* q, const int32_t*, __m256i (&c)[C], int rows) {
        const __m256i numbers = code(), ones = _mm256_set1_epi16(1);
        UNROLL for (int m = 0; m < C; m++) c[m] = _mm256_setzero_si256();
        UNROLL for (int j = 0; j < 8; j++) {
            const __m256i v = weights(w, numbers, j, rows), size = _mm256_abs_epi8(v);
            UNROLL for (int m = 0; m < C; m++) {
                c[m] = _mm256_add_epi32(c[m], _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(quad(q, j * C + m), v)), ones));
                KEEP(c[m]);
            }
        }
    }
#endif
};

template <int QUADS, bool SHIFTED = false> struct S8Quads { // one part; SHIFTED: u8 already
    enum : int64_t { bytes = 512, part_bytes = QUADS * 64, parts = 8 / QUADS, quads = QUADS, dot_by_scale = 0, grouped = QUADS == 8 && !SHIFTED, by_rows = 0 };
    template <int C, bool MIN> SIMD void dot(const uint8_t* w, const int8_t* q, [[maybe_unused]] const int32_t* sum, __m256i (&c)[C][2]) {
#ifdef VNNI256
        const __m256i flip = _mm256_set1_epi8((char)0x80); // to u8: c starts at -128 * sum of q
        UNROLL for (int m = 0; m < C; m++) c[m][0] = c[m][1] = _mm256_set1_epi32(sum[m]);
#else
        const __m256i ones = _mm256_set1_epi16(1);
        UNROLL for (int m = 0; m < C; m++) c[m][0] = c[m][1] = _mm256_setzero_si256();
#endif
        UNROLL for (int j = 0; j < QUADS; j++) {
            const __m256i v0 = _mm256_loadu_si256((const __m256i*)(w + 64 * j));
            const __m256i v1 = _mm256_loadu_si256((const __m256i*)(w + 64 * j + 32));
#ifdef VNNI256
            const __m256i w0 = SHIFTED ? v0 : _mm256_xor_si256(v0, flip), w1 = SHIFTED ? v1 : _mm256_xor_si256(v1, flip);
#else
            const __m256i w0 = _mm256_abs_epi8(v0), w1 = _mm256_abs_epi8(v1);
#endif
            UNROLL for (int m = 0; m < C; m++) {
                const __m256i b = quad(q, j * C + m);
#ifdef VNNI256
                c[m][0] = DPBUSD(c[m][0], w0, b);
                c[m][1] = DPBUSD(c[m][1], w1, b);
#else
                const __m256i p0 = _mm256_maddubs_epi16(w0, _mm256_sign_epi8(b, v0));
                const __m256i p1 = _mm256_maddubs_epi16(w1, _mm256_sign_epi8(b, v1));
                c[m][0] = _mm256_add_epi32(c[m][0], _mm256_madd_epi16(p0, ones));
                c[m][1] = _mm256_add_epi32(c[m][1], _mm256_madd_epi16(p1, ones));
#endif
                KEEP(c[m][0]);
                KEEP(c[m][1]);
            }
        }
    }
    SIMD __m256i widened(__m256i c) { return c; }
};

using S8 = S8Quads<8>;
using S8By16 = S8Quads<4>;
using S8Joined = S8Quads<8, SHIFTED_S8>;

template <int TABLES> SIMD __m256 block_scales(const uint8_t* table, int half, [[maybe_unused]] const uint8_t* steps = nullptr) {
    if (TABLES == kSingle) return vload((const float*)table + half * 8);
    const __m256 x = vload_f16((const uint16_t*)table + half * 8);
    if (TABLES == kHalf) return x;
    return vmul(x, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(steps + 8 * half)))));
}

SIMD __m256 zero_points(const uint8_t* table, int half) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(table + 8 * half))));
}
template <int TABLES, int MIN> SIMD __m256 block_minima(__m256 s, const uint8_t* table, int half, const uint8_t* steps = nullptr) {
    if (MIN == kZeros) return vmul(_mm256_sub_ps(_mm256_setzero_ps(), s), zero_points(table, half));
    return block_scales<TABLES>(table, half, steps);
}

// z + dot s d, as linear.inl says for W.
template <class W> SIMD __m256 add_scaled(__m256 z, __m256i c, __m256 s, __m256 d) {
    const __m256 dot = _mm256_cvtepi32_ps(W::widened(c));
    return W::dot_by_scale ? vfma(vmul(dot, s), d, z) : vfma(dot, vmul(s, d), z);
}

// A block to eight rows after the other.
template <int C, int TABLES, int MIN, class W>
SIMD void add_block_by_rows(const uint8_t* w, const uint8_t* scales, const int8_t* q, const float* d, const float* u, const int32_t* sum, float* out) {
    constexpr int64_t table = TABLES == kSteps ? 0 : table_bytes(TABLES == kSingle), minima = tables_of(TABLES, W::parts, kNoMinima);
    const uint8_t* steps = w + W::bytes;
    UNROLL for (int rows = 0; rows < 2; rows++) {
        __asm__("" : "+r"(q)); // or the first half's broadcasts are kept for the second, in memory
        UNROLL for (int part = 0; part < W::parts; part++) {
            __m256i c[C];
            W::template dot<C, MIN != kNoMinima>(w + part * W::part_bytes, q + part * W::quads * 4 * C, sum + part * C, c, rows);
            const __m256 s = block_scales<TABLES>(scales + part * table, rows, steps + part * kPanel);
            __m256 n;
            if (MIN) n = block_minima<TABLES, MIN>(s, scales + minima, rows, steps + kPanel); // never with two parts
            UNROLL for (int m = 0; m < C; m++) {
                float* at = out + 16 * m + 8 * rows;
                __m256 z = vfma(_mm256_cvtepi32_ps(c[m]), _mm256_mul_ps(s, _mm256_set1_ps(d[m])), vload(at));
                if (MIN) z = vfma(n, _mm256_set1_ps(u[m]), z);
                vstore(at, z);
            }
        }
    }
}

template <int C, int TABLES, int MIN, class W>
SIMD void add_block(const uint8_t* w, const uint8_t* scales, const int8_t* q, const float* d, const float* u, const int32_t* sum, float* out) {
    constexpr int64_t table = TABLES == kSteps ? 0 : table_bytes(TABLES == kSingle), minima = tables_of(TABLES, W::parts, kNoMinima);
    const uint8_t* steps = w + W::bytes;
    UNROLL for (int part = 0; part < W::parts; part++, q += W::quads * 4 * C, sum += C, steps += kPanel) {
        if (part && C > 1) __asm__("" : "+r"(out)); // as in dot_panel
        __m256i c[C][2];
        W::template dot<C, MIN != kNoMinima>(w + part * W::part_bytes, q, sum, c);
        const __m256 s0 = block_scales<TABLES>(scales + part * table, 0, steps);
        const __m256 s1 = block_scales<TABLES>(scales + part * table, 1, steps);
        __m256 n0, n1;
        if (MIN) { // never with two parts
            n0 = block_minima<TABLES, MIN>(s0, scales + minima, 0, steps + kPanel);
            n1 = block_minima<TABLES, MIN>(s1, scales + minima, 1, steps + kPanel);
        }
        UNROLL for (int m = 0; m < C; m++) {
            const __m256 scale = _mm256_set1_ps(d[m]);
            __m256 z0 = vload(out + 16 * m), z1 = vload(out + 16 * m + 8);
            if (!W::dot_by_scale) z0 = add_scaled<W>(z0, c[m][0], s0, scale), z1 = add_scaled<W>(z1, c[m][1], s1, scale);
            if (MIN) {
                const __m256 offset = _mm256_set1_ps(u[m]);
                z0 = vfma(n0, offset, z0);
                z1 = vfma(n1, offset, z1);
            }
            if (W::dot_by_scale) z0 = add_scaled<W>(z0, c[m][0], s0, scale), z1 = add_scaled<W>(z1, c[m][1], s1, scale);
            vstore(out + 16 * m, z0);
            vstore(out + 16 * m + 8, z1);
        }
    }
}

// z lives in memory: 16 registers do not hold integer and float accumulators both.
template <int C, class W, int TABLES, int MIN>
__attribute__((noinline)) void dot_panel(const uint8_t* w, const int8_t* q, const float* d, const float* u,
                                         const int32_t* sum, int64_t blocks, int64_t group, Ahead ahead, float* out) {
    constexpr int64_t bytes = W::bytes + steps_of(TABLES, W::parts, MIN);
    Blocks<W::grouped || TABLES == kSteps> at{.w = w, .group = group};
    UNROLL for (int i = 0; i < 2 * C; i++) vstore(out + 8 * i, _mm256_setzero_ps());
    for (int64_t b = 0; b < blocks; b++, q += kBlock * C, d += C, u += C, sum += W::parts * C) {
        prefetch_next<C>(ahead);
        at.begin(bytes);
        if (C > 1) __asm__("" : "+r"(out)); // or the compiler keeps copies of z, on the stack
        if constexpr (W::by_rows != 0) add_block_by_rows<C, TABLES, MIN, W>(at.w, at.tables, q, d, u, sum, out);
        else add_block<C, TABLES, MIN, W>(at.w, at.tables, q, d, u, sum, out);
        at.next(bytes, tables_of(TABLES, W::parts, MIN));
    }
}

// What many tokens will meet is taken apart once; so six bits are with VNNI256, too.
#define EXPANDED_U6 U6Quads<true>

// Steps with their scales, in f32.
SIMD void expand_steps(int parts, bool minima, const uint8_t* from, const uint8_t* steps, float* to) {
    for (int i = 0; i < 2 * parts; i++) vstore(to + 8 * i, block_scales<kSteps>(from, i % 2, steps + i / 2 * kPanel));
    for (int i = 0; i < 2 && minima; i++) vstore(to + 16 + 8 * i, block_scales<kSteps>(from + 32, i, steps + kPanel));
}

SIMD __m256i expanded_weights(const U6&, const uint8_t* w, int quad, int half) {
    w += quad / 4 * U6::part_bytes;
    return U6::weights(w, U6::pairs_of_bits(w, half), quad % 4, half);
}
SIMD void expand_six_bits(const Matrix& w, const uint8_t* panel, uint8_t* to) {
    const int64_t blocks = w.k / kBlock, bytes = value_bytes(w.layout), size = tables_bytes(w);
    Blocks<true> at{.w = panel, .group = w.group};
    for (int64_t b = 0; b < blocks; b++, to += EXPANDED_U6::bytes + 64 * U6::parts) {
        at.begin(bytes);
        UNROLL for (int i = 0; i < 16; i++) _mm256_store_si256((__m256i*)(to + 32 * i), expanded_weights(U6{}, at.w, i / 2, i % 2));
        expand_steps(U6::parts, false, at.tables, at.w + U6::bytes, (float*)(to + EXPANDED_U6::bytes));
        at.next(bytes, size);
    }
}

#ifdef VNNI256
__attribute__((noinline)) void expand_panel(const Matrix& w, int64_t p, uint8_t* to) { expand_six_bits(w, w.data + p * w.panel_bytes, to); }
#endif

#ifndef VNNI256
// With integer scales (types.h) what widens the sums multiplies them by their scale. Exact, as a dot product times its
// scale fits int32: at most 2 x 30,480 and 32,767. z is in the row's unit, a power of two, so no bit differs from
// add_block's (but where numbers are so large or small that one of both leaves f32's normal range).
template <bool EXPANDED> SIMD __m256i integer_scales(const uint8_t* table, int half) {
    if (EXPANDED) return _mm256_loadu_si256((const __m256i*)table + half);
    const __m256i t = _mm256_loadu_si256((const __m256i*)table);
    return half ? _mm256_unpackhi_epi16(t, t) : _mm256_unpacklo_epi16(t, t);
}
template <bool EXPANDED, int MIN> SIMD __m256 minima_in_units(const uint8_t* scales, __m256i s, const float* per_unit, int half) {
    if (MIN == kZeros) return vmul(_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_setzero_si256(), _mm256_srai_epi32(s, 16))), zero_points(scales + 32, half));
    const __m256 n = block_scales<EXPANDED ? kSingle : kHalf>(scales + (EXPANDED ? 64 : 32), half);
    return EXPANDED ? n : vmul(n, vload(per_unit + 8 * half));
}

template <int C> SIMD void keep_sums(const Kept& kept, int64_t block, const __m256i (&c)[C][2]) {
    UNROLL for (int m = 0; m < C; m++)
        if (m == kept.token)
            UNROLL for (int rows = 0; rows < 2; rows++) _mm256_store_si256((__m256i*)(kept.to + kKeptBytes * block) + rows, c[m][rows]);
}

template <int C, int MIN, bool KEEPS, bool EXPANDED, bool FIFTH>
SIMD void add_block_in_units(const U4Quads<EXPANDED, FIFTH>&, const uint8_t* w, const uint8_t* scales, const float* per_unit, const int8_t* q, const float* d,
                             const float* u, const int32_t* sum, const uint8_t* fifth, const Kept& kept, int64_t block, float* out) {
    using W = U4Quads<EXPANDED, FIFTH>;
    __m256i c[C][2];
    W::template dot<C, MIN != kNoMinima>(w, q, sum, c, fifth);
    if (KEEPS) keep_sums(kept, block, c);
    const __m256i s0 = integer_scales<EXPANDED>(scales, 0), s1 = integer_scales<EXPANDED>(scales, 1);
    __m256 n0, n1;
    if (MIN) n0 = minima_in_units<EXPANDED, MIN>(scales, s0, per_unit, 0), n1 = minima_in_units<EXPANDED, MIN>(scales, s1, per_unit, 1);
    UNROLL for (int m = 0; m < C; m++) {
        const __m256 scale = _mm256_set1_ps(d[m]);
        __m256 z0 = vload(out + 16 * m), z1 = vload(out + 16 * m + 8);
        if (MIN) {
            const __m256 offset = _mm256_set1_ps(u[m]);
            z0 = vfma(n0, offset, z0);
            z1 = vfma(n1, offset, z1);
        }
        z0 = vfma(_mm256_cvtepi32_ps(_mm256_madd_epi16(c[m][0], s0)), scale, z0);
        z1 = vfma(_mm256_cvtepi32_ps(_mm256_madd_epi16(c[m][1], s1)), scale, z1);
        vstore(out + 16 * m, z0);
        vstore(out + 16 * m + 8, z1);
    }
}

template <int C, class W, int MIN, bool KEEPS = false>
__attribute__((noinline)) void dot_panel_in_units(const uint8_t* w, const float* units, const int8_t* q, const float* d, const float* u, const int32_t* sum,
                                                  int64_t blocks, int64_t group, Ahead ahead, float* out, const uint8_t* fifth = nullptr, Kept kept = {}) {
    constexpr bool expanded = W::bytes == 512;
    Blocks<W::grouped> at{.w = w, .group = group};
    alignas(32) float per_unit[16];
    if (MIN == kMinima && !expanded) store(per_unit, set1(1.0f) / load(units));
    UNROLL for (int i = 0; i < 2 * C; i++) vstore(out + 8 * i, _mm256_setzero_ps());
    for (int64_t b = 0; b < blocks; b++, q += kBlock * C, d += C, u += C, sum += C) {
        prefetch_next<C>(ahead);
        at.begin(W::bytes);
        if (C > 1) __asm__("" : "+r"(out)); // as in dot_panel
        add_block_in_units<C, MIN, KEEPS>(W{}, at.w, at.tables, per_unit, q, d, u, sum, W::apart ? fifth + b * kFifthBytes : nullptr, kept, b, out);
        at.next(W::bytes, tables_of(expanded, 1, MIN));
    }
    UNROLL for (int i = 0; i < 2 * C; i++) vstore(out + 8 * i, vmul(vload(out + 8 * i), vload(units + 8 * (i % 2))));
}

// Taking nibbles apart costs a tenth of a tile's instructions.
#define EXPANDED_U4 U4Quads<true>
#define EXPANDED_U5 U5Quads<true>

// Tables too: integers repeated, minima in the rows' units; or all in f32.
template <bool UNITS> SIMD void expand_tables(int minima, bool wide, const float* units, const uint8_t* from, float* to) {
    if (UNITS) {
        for (int i = 0; i < 2; i++) _mm256_store_si256((__m256i*)to + i, integer_scales<false>(from, i));
        if (minima == kMinima) store(to + 16, load_f16((const uint16_t*)(from + 32)) / load(units));
        for (int i = 0; i < 2 && minima == kZeros; i++) vstore(to + 16 + 8 * i, minima_in_units<false, kZeros>(from, integer_scales<false>(from, i), nullptr, i));
        return;
    }
    for (int i = 0; i < 2 && minima == kZeros; i++) vstore(to + 16 + 8 * i, block_minima<kHalf, kZeros>(block_scales<kHalf>(from, i), from + 32, i));
    for (int64_t i = 0; i <= (minima == kMinima); i++) store(to + 16 * i, wide ? load((const float*)from + 16 * i) : load_f16((const uint16_t*)from + 16 * i));
}

SIMD __m256i expanded_weights(const U4&, const uint8_t* w, int quad, int half) { return U4::weights(w, quad, half); }
SIMD __m256i expanded_weights(const U5&, const uint8_t* w, int quad, int half) { return U5::weights(w, U5::fifth_bits(w, half), quad, half); }
SIMD __m256i expanded_weights(const C4&, const uint8_t* w, int quad, int half) { return C4::weights(w, C4::code(), quad, half); }

template <class W, bool UNITS, bool STEPS = false> SIMD void expand_blocks(const Matrix& w, const uint8_t* panel, const float* units, uint8_t* to) {
    const int64_t blocks = w.k / kBlock, group = w.group, size = tables_bytes(w), bytes = value_bytes(w.layout);
    const int minima = w.zeros ? kZeros : w.minima ? kMinima : kNoMinima;
    Blocks<W::grouped || STEPS> at{.w = panel, .group = group};
    const bool wide = w.wide; // all read once: what is stored might be the matrix
    for (int64_t b = 0; b < blocks; b++, to += EXPANDED_U4::bytes + 64 * (W::parts + (minima != kNoMinima))) {
        at.begin(bytes);
        UNROLL for (int i = 0; i < 16; i++) _mm256_store_si256((__m256i*)(to + 32 * i), expanded_weights(W{}, at.w, i / 2, i % 2));
        if (STEPS) expand_steps(W::parts, minima != kNoMinima, at.tables, at.w + W::bytes, (float*)(to + EXPANDED_U4::bytes));
        else expand_tables<UNITS>(minima, wide, units, at.tables, (float*)(to + EXPANDED_U4::bytes));
        at.next(bytes, size);
    }
}

__attribute__((noinline)) void expand_panel(const Matrix& w, int64_t p, uint8_t* to) {
    const uint8_t* panel = w.data + p * w.panel_bytes;
    const float* units = units_of(w, p);
    if (w.layout == Layout::K4) expand_blocks<U4, false, true>(w, panel, units, to);
    else if (w.layout == Layout::K5) expand_blocks<U5, false, true>(w, panel, units, to);
    else if (w.layout == Layout::K6) expand_six_bits(w, panel, to);
    else if (w.layout == Layout::C4) expand_blocks<C4, false, true>(w, panel, units, to);
    else if (w.layout == Layout::U5) expand_blocks<U5, false>(w, panel, units, to);
    else if (units) expand_blocks<U4, true>(w, panel, units, to);
    else expand_blocks<U4, false>(w, panel, units, to);
}

// S8Cut's five high bits.
template <bool UNITS> __attribute__((noinline)) void expand_high_bits(const Matrix& w, int64_t p, const float* units, uint8_t* to) {
    const int64_t blocks = w.k / kBlock, step = w.block_bytes;
    const bool wide = w.wide;
    const uint8_t *panel = w.data + p * w.panel_bytes, *fifth = w.fifth + p * blocks * kFifthBytes;
    for (int64_t b = 0; b < blocks; b++, panel += step, fifth += kFifthBytes, to += EXPANDED_U4::bytes + 64) {
        const __m256i bits[2] = {load_rows(fifth, 0, 0), load_rows(fifth, 0, 1)};
        UNROLL for (int i = 0; i < 16; i++) {
            const __m256i x = with_fifth(nibbles(load_rows(panel, i / 2 % 4, i % 2), i / 2), bits[i % 2], i / 2);
            _mm256_store_si256((__m256i*)(to + 32 * i), x);
        }
        expand_tables<UNITS>(0, wide, units, panel + 256, (float*)(to + EXPANDED_U4::bytes));
    }
}

// What such tables say of eight rows, in f32.
template <bool UNITS> SIMD __m256 expanded_scales(const uint8_t* table, const float* units, int half) {
    if (!UNITS) return vload((const float*)table + 8 * half);
    const __m256i repeated = _mm256_load_si256((const __m256i*)table + half);
    return vmul(_mm256_cvtepi32_ps(_mm256_srai_epi32(repeated, 16)), vload(units + 8 * half));
}

// One row's product with a panel of S8Cut, the same bits as S8Quads' with the joined panel: a number is 8 h + e - 128, `high`
// holds h as expand_high_bits wrote it, `low` has e in its nibbles. h's products are widened twice a block, as in U5Quads, or
// have been summed up already (kept); e's, 16 of at most 7 x 127, are widened once.
template <bool UNITS, bool KEPT>
__attribute__((noinline)) void dot_cut_panel(const uint8_t* high, const uint8_t* low, const float* units, const int8_t* q, const float* d, const int32_t* sum,
                                             int64_t blocks, float* out, const Kept& kept = {}) {
    const __m256i three_bits = _mm256_set1_epi8(7), eights = _mm256_set1_epi16(8), ones = _mm256_set1_epi16(1);
    __m256 z[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t b = 0; b < blocks; b++, high += EXPANDED_U4::bytes + 64, low += kLowBytes, q += kBlock) {
        [[maybe_unused]] __m256i h[2][2]; // of eight rows; h's of half a block
        __m256i e[2];
        UNROLL for (int j = 0; j < 4; j++) {
            const __m256i q0 = quad(q, j), q1 = quad(q, j + 4);
            UNROLL for (int rows = 0; rows < 2; rows++) {
                const __m256i nibbles = load_rows(low, j, rows);
                const __m256i e0 = _mm256_maddubs_epi16(_mm256_and_si256(nibbles, three_bits), q0);
                const __m256i e1 = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(nibbles, 4), three_bits), q1);
                e[rows] = j ? _mm256_add_epi16(e[rows], _mm256_add_epi16(e0, e1)) : _mm256_add_epi16(e0, e1);
                KEEP(e[rows]);
                if constexpr (!KEPT)
                    UNROLL for (int half = 0; half < 2; half++) {
                        const __m256i p = _mm256_maddubs_epi16(load_rows(high, j + 4 * half, rows), half ? q1 : q0);
                        h[rows][half] = j ? _mm256_add_epi16(h[rows][half], p) : p;
                        KEEP(h[rows][half]);
                    }
            }
        }
        int32_t start = sum[b];
        if (KEPT) start -= 8 * ((int16_t)kept.starts[b * kept.stride] + (kept.starts[b * kept.stride] >> 16)); // what both lanes began with
        UNROLL for (int rows = 0; rows < 2; rows++) {
            __m256i eighths;
            if constexpr (KEPT) eighths = _mm256_madd_epi16(_mm256_load_si256((const __m256i*)(kept.to + kKeptBytes * b) + rows), eights);
            else eighths = _mm256_add_epi32(_mm256_madd_epi16(h[rows][0], eights), _mm256_madd_epi16(h[rows][1], eights));
            const __m256i rest = _mm256_add_epi32(_mm256_madd_epi16(e[rows], ones), _mm256_set1_epi32(start));
            const __m256 scale = expanded_scales<UNITS>(high + EXPANDED_U4::bytes, units, rows);
            z[rows] = vfma(_mm256_cvtepi32_ps(_mm256_add_epi32(eighths, rest)), vmul(scale, _mm256_set1_ps(d[b])), z[rows]);
        }
    }
    UNROLL for (int rows = 0; rows < 2; rows++) vstore(out + 8 * rows, z[rows]);
}
#endif
