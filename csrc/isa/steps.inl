// U2 and U3: integers of two and three bits, met as they are stored, unsigned. A half block's products are summed up, times its
// step, a whole number, and a block's total is exact; only then it meets the scale of 256 columns and of x. What all numbers of
// a half block have in common, U2's minimum and the 4 that U3 has too much, meets the sum of x there.
//
// Rows are taken VW at a time. Sums are int32 in a row's lane, or (PAIRED) two int16 that the step multiplies alike.

typedef uint32_t Lanes __attribute__((vector_size(4 * VW)));

#if defined(__AVX512BW__)
enum { PAIRED = 0 };
SIMD VI step_bytes(const uint8_t* p, int) { return _mm512_loadu_si512(p); }
SIMD VI few_bits(VI v, int quad) { return _mm512_and_si512(_mm512_srli_epi16(v, quad / 2 * 2), _mm512_set1_epi8(3)); }
SIMD VI with_third(VI x, VI bits, int quad) {
    const VI third = quad < 2 ? _mm512_slli_epi16(bits, 2 - quad) : _mm512_srli_epi16(bits, quad - 2);
    return _mm512_ternarylogic_epi32(x, third, _mm512_set1_epi8(4), 0xf8); // a | (b & c)
}
SIMD void add_products(VI& sum, VI x, const int8_t* q) { sum = _mm512_dpbusd_epi32(sum, x, _mm512_set1_epi32(*(const int32_t*)q)); }
SIMD Lanes load_steps(const uint8_t* p, int) { return (Lanes)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)); }
#elif defined(__AVX2__)
SIMD VI step_bytes(const uint8_t* p, int rows) { return load_rows(p, 0, rows); }
SIMD VI few_bits(VI v, int quad) { return _mm256_and_si256(_mm256_srli_epi16(v, quad / 2 * 2), _mm256_set1_epi8(3)); }
SIMD VI with_third(VI x, VI bits, int quad) {
    const VI third = quad < 2 ? _mm256_slli_epi16(bits, 2 - quad) : _mm256_srli_epi16(bits, quad - 2);
    return _mm256_or_si256(x, _mm256_and_si256(third, _mm256_set1_epi8(4)));
}
#ifdef VNNI256
enum { PAIRED = 0 };
SIMD void add_products(VI& sum, VI x, const int8_t* q) { sum = DPBUSD(sum, x, quad(q, 0)); }
SIMD Lanes load_steps(const uint8_t* p, int rows) { return (Lanes)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p + rows)); }
#else
#define SPREADS_STEPS
enum { PAIRED = 1 }; // 8 products of at most 7 x 128 fit int16
SIMD void add_products(VI& sum, VI x, const int8_t* q) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(x, quad(q, 0)));
    KEEP(sum);
}
#endif
#else
typedef uint16_t StepPairs __attribute__((vector_size(64)));
SIMD VI step_bytes(const uint8_t* p, int) {
    VI x;
    memcpy(&x, p, 64);
    return x;
}
SIMD VI few_bits(VI v, int quad) { return (VI)((StepPairs)v >> quad / 2 * 2 & 0x0303); }
SIMD VI with_third(VI x, VI bits, int quad) {
    return x | (VI)((quad < 2 ? (StepPairs)bits << (2 - quad) : (StepPairs)bits >> (quad - 2)) & 0x0404);
}
#if defined(__ARM_FEATURE_DOTPROD)
enum { PAIRED = 0 };
SIMD void add_products(VI& sum, VI x, const int8_t* q) {
    int32x4_t z[4];
    int8x16_t w[4];
    memcpy(z, &sum, 64), memcpy(w, &x, 64);
    UNROLL for (int r = 0; r < 4; r++) z[r] = vdotq_s32(z[r], w[r], quad(q, 0));
    memcpy(&sum, z, 64);
}
#else
enum { PAIRED = 1 };
SIMD void add_products(VI& sum, VI x, const int8_t* q) {
    const H even = (H)((StepPairs)x & 255), odd = (H)((StepPairs)x >> 8);
    sum = (VI)((H)sum + even * quad_elements(q, 0) + odd * quad_elements(q, 1));
}
#endif
SIMD Lanes load_steps(const uint8_t* p, int) {
    Lanes x;
    for (int i = 0; i < VW; i++) x[i] = (uint32_t)(p[2 * i] | p[2 * i + 1] << 8);
    return x;
}
#endif

// A block's steps as factors of 16 bits: of the two halves' sums, and of both sums of x in a pair.
struct StepFactors { VI first, second, both; };
#ifdef SPREADS_STEPS
// Of the two bytes of each of eight rows' steps, byte A to the first 16 bits of the row's lane and byte B to the others.
template <int A, int B> SIMD VI spread_steps(__m256i twice) {
    return _mm256_shuffle_epi8(twice, _mm256_setr_epi8(A, -1, B, -1, A + 2, -1, B + 2, -1, A + 4, -1, B + 4, -1, A + 6, -1, B + 6, -1,
                                                       A + 8, -1, B + 8, -1, A + 10, -1, B + 10, -1, A + 12, -1, B + 12, -1, A + 14, -1, B + 14, -1));
}
template <bool THIRD> SIMD StepFactors step_factors(const uint8_t* steps, int rows) {
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)steps + rows));
    const VI first = spread_steps<0, 0>(twice), second = spread_steps<1, 1>(twice), both = spread_steps<0, 1>(twice);
    if (THIRD) {
        const VI middle = _mm256_set1_epi16(32);
        return {_mm256_sub_epi16(first, middle), _mm256_sub_epi16(second, middle), _mm256_slli_epi16(_mm256_sub_epi16(middle, both), 2)};
    }
    const VI low = _mm256_set1_epi16(15);
    return {_mm256_and_si256(first, low), _mm256_and_si256(second, low), _mm256_srli_epi16(both, 4)};
}
#else
template <bool THIRD> SIMD StepFactors step_factors(const uint8_t* steps, int rows) {
    const Lanes x = load_steps(steps, rows);
    const Lanes s0 = THIRD ? (x & 255) - 32 : x & 15, s1 = THIRD ? (x >> 8) - 32 : x >> 8 & 15;
    const Lanes m0 = THIRD ? s0 * -4u : x >> 4 & 15, m1 = THIRD ? s1 * -4u : x >> 12;
    const Lanes first = s0 & 0xffff, second = s1 & 0xffff;
    if (PAIRED) return {(VI)(first | s0 << 16), (VI)(second | s1 << 16), (VI)((m0 & 0xffff) | m1 << 16)};
    return {(VI)first, (VI)second, (VI)((m0 & 0xffff) | m1 << 16)};
}
#endif

// Sums of pairs' products, on their own.
SIMD VI pair_products(VI x, VI y) {
#ifdef SPREADS_STEPS
    return _mm256_madd_epi16(x, y); // vidot would add them to a register of zeros
#else
    VI sum = vizero();
    vidot(sum, x, y);
    return sum;
#endif
}

// Where a row's sums are: in registers where these hold them, else in memory, that is where they go in the end.
#if defined(__AVX512BW__)
template <int C> struct StepSums {
    V z[C];
    inline __attribute__((always_inline)) explicit StepSums(float*) { UNROLL for (int m = 0; m < C; m++) z[m] = vzero(); }
    inline __attribute__((always_inline)) V get(int m, int) const { return z[m]; }
    inline __attribute__((always_inline)) void set(int m, int, V x) { z[m] = x; }
    inline __attribute__((always_inline)) void begin_block() {}
    inline __attribute__((always_inline)) void finish(float* out) const { UNROLL for (int m = 0; m < C; m++) vstore(out + 16 * m, z[m]); }
};
#else
template <int C> struct StepSums {
    float* out;
    inline __attribute__((always_inline)) explicit StepSums(float* to) : out(to) {
        UNROLL for (int i = 0; i < C * 16 / VW; i++) vstore(out + i * VW, vzero());
    }
    inline __attribute__((always_inline)) V get(int m, int rows) const { return vload(out + 16 * m + rows * VW); }
    inline __attribute__((always_inline)) void set(int m, int rows, V x) { vstore(out + 16 * m + rows * VW, x); }
    inline __attribute__((always_inline)) void begin_block() { // or the compiler keeps copies of them, on the stack
        if (C > 1) __asm__("" : "+r"(out));
    }
    inline __attribute__((always_inline)) void finish(float*) const {}
};
#endif

// sum: [2][C] of each block, of q in its halves.
template <int C, bool THIRD>
__attribute__((noinline)) void step_panel(const uint8_t* w, const int8_t* q, const float* d, const int32_t* sum, int64_t blocks, int64_t group, Ahead ahead, float* out) {
    constexpr int64_t bytes = (THIRD ? 192 : 128) + 2 * kPanel, table = kPanel * 2;
    Blocks<true> at{.w = w, .group = group};
    StepSums<C> z(out);
    for (int64_t b = 0; b < blocks; b++, q += kBlock * C, d += C, sum += 2 * C) {
        prefetch_next<C>(ahead);
        at.begin(bytes);
        z.begin_block();
        VI halves[C];
        UNROLL for (int m = 0; m < C; m++) {
            const int16_t both[2] = {(int16_t)sum[m], (int16_t)sum[C + m]};
            halves[m] = vipair(both);
        }
        UNROLL for (int rows = 0; rows < 16 / VW; rows++) {
            const VI v[2] = {step_bytes(at.w, rows), step_bytes(at.w + 64, rows)};
            VI bits, sums[2][C];
            if (THIRD) bits = step_bytes(at.w + 128, rows);
            UNROLL for (int m = 0; m < C; m++) sums[0][m] = sums[1][m] = vizero();
            UNROLL for (int i = 0; i < 8; i++) {
                VI x = few_bits(v[i % 2], i);
                if (THIRD) x = with_third(x, bits, i);
                UNROLL for (int m = 0; m < C; m++) add_products(sums[i / 4][m], x, q + (i * C + m) * 4);
            }
            const StepFactors f = step_factors<THIRD>(at.w + bytes - table, rows);
            const V s = vload_f16((const uint16_t*)at.tables + rows * VW);
            V least;
            if (!THIRD) least = vload_f16((const uint16_t*)(at.tables + table) + rows * VW);
            UNROLL for (int m = 0; m < C; m++) {
                const V scale = vset1(d[m]);
                VI total = pair_products(sums[0][m], f.first);
                vidot(total, sums[1][m], f.second);
                if (THIRD) vidot(total, f.both, halves[m]);
                V y = vfma(vi_float(total), vmul(s, scale), z.get(m, rows));
                if (!THIRD) y = vfma(vi_float(pair_products(f.both, halves[m])), vmul(least, scale), y);
                z.set(m, rows, y);
            }
        }
        at.next(bytes, THIRD ? table : 2 * table);
    }
    z.finish(out);
}
#undef SPREADS_STEPS
