// Numbers that are codes of floats, F8, NF4 and FP4, met by x as it is: widened to f32, times their scale, as
// kernels/coded.py does it. So an output has the bits that a panel of f32 of the same numbers gives it.

// numbers(): of `columns` columns of a panel's 16 rows, which 16 bytes hold.
enum { kHalves = 16 / VW };

// E4M3 moved to f16's places is 2^-8 of the number, subnormals included: pack.cpp makes up for it in the scale.
struct F8Codes {
    enum : int64_t { columns = 1 };
    explicit F8Codes(const float*) {}
#if defined(__AVX512F__)
    SIMD void numbers(const F8Codes&, const uint8_t* w, V (&y)[columns][kHalves]) {
        const __m256i x = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)w)), 7); // two signs
        y[0][0] = _mm512_cvtph_ps(_mm256_and_si256(x, _mm256_set1_epi16((int16_t)0xbfff)));
    }
#elif defined(__AVX2__)
    SIMD void numbers(const F8Codes&, const uint8_t* w, V (&y)[columns][kHalves]) {
        UNROLL for (int j = 0; j < kHalves; j++) {
            const __m128i x = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)(w + 8 * j))), 7); // two signs
            y[0][j] = _mm256_cvtph_ps(_mm_and_si128(x, _mm_set1_epi16((int16_t)0xbfff)));
        }
    }
#else
    SIMD void numbers(const F8Codes&, const uint8_t* w, V (&y)[columns][kHalves]) {
        uint16_t halves[16];
        for (int i = 0; i < 16; i++) halves[i] = (uint16_t)((w[i] & 128) << 8 | (w[i] & 127) << 7);
        y[0][0] = vload_f16(halves);
    }
#endif
};

// Two columns to a byte, the first in the low nibble.
struct NibbleCodes {
    enum : int64_t { columns = 2 };
#if defined(__AVX512F__)
    __m512 table;
    explicit NibbleCodes(const float* codes) : table(_mm512_loadu_ps(codes)) {}
    SIMD void numbers(const NibbleCodes& of, const uint8_t* w, V (&y)[columns][kHalves]) {
        const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)w));
        y[0][0] = _mm512_permutexvar_ps(x, of.table); // by four bits of an index
        y[1][0] = _mm512_permutexvar_ps(_mm512_srli_epi32(x, 4), of.table);
    }
#elif defined(__AVX2__)
    // Shuffles of bytes find 32 numbers at once, a byte of each; those of floats find 8, across lanes, which takes longer.
    __m256i bytes[4]; // byte b of all 16 numbers, in both lanes
    explicit NibbleCodes(const float* codes) {
        const __m128i sorted = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        __m128i x[4]; // of four numbers their first bytes, their second ones, and so on
        for (int i = 0; i < 4; i++) x[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)codes + i), sorted);
        const __m128i low[2] = {_mm_unpacklo_epi32(x[0], x[1]), _mm_unpacklo_epi32(x[2], x[3])};
        const __m128i high[2] = {_mm_unpackhi_epi32(x[0], x[1]), _mm_unpackhi_epi32(x[2], x[3])};
        bytes[0] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(low[0], low[1]));
        bytes[1] = _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(low[0], low[1]));
        bytes[2] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(high[0], high[1]));
        bytes[3] = _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(high[0], high[1]));
    }
    SIMD void numbers(const NibbleCodes& of, const uint8_t* w, V (&y)[columns][kHalves]) {
        // To each lane four of its first eight rows and four of its last eight, once for each column: where unpacking wants them.
        const __m256i rows = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)w)),
                                                 _mm256_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11,
                                                                  4, 5, 6, 7, 12, 13, 14, 15, 4, 5, 6, 7, 12, 13, 14, 15));
        const __m256i x = _mm256_and_si256(_mm256_srlv_epi64(rows, _mm256_setr_epi64x(0, 4, 0, 4)), _mm256_set1_epi8(15));
        __m256i b[4];
        UNROLL for (int i = 0; i < 4; i++) b[i] = _mm256_shuffle_epi8(of.bytes[i], x);
        const __m256i low[2] = {_mm256_unpacklo_epi8(b[0], b[1]), _mm256_unpackhi_epi8(b[0], b[1])};
        const __m256i high[2] = {_mm256_unpacklo_epi8(b[2], b[3]), _mm256_unpackhi_epi8(b[2], b[3])};
        UNROLL for (int column = 0; column < 2; column++) {
            y[column][0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low[column], high[column]));
            y[column][1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low[column], high[column]));
        }
    }
#else
    const float* table;
    explicit NibbleCodes(const float* codes) : table(codes) {}
    SIMD void numbers(const NibbleCodes& of, const uint8_t* w, V (&y)[columns][kHalves]) {
        for (int i = 0; i < 16; i++) y[0][0][i] = of.table[w[i] & 15], y[1][0][i] = of.table[w[i] >> 4];
    }
#endif
};

// One fused multiply-add chain per output, k ascending.
template <int C, class Codes> __attribute__((noinline)) void coded_panel(const Matrix& w, const uint8_t* panel, const float* x, float* out) {
    enum { H = kHalves };
    const Codes codes(codes_of(w.layout));
    V z[C][H];
    UNROLL for (int m = 0; m < C; m++)
        UNROLL for (int j = 0; j < H; j++) z[m][j] = vzero();
    for (int64_t first = 0; first < w.k; first += w.group) {
        V scale[H];
        UNROLL for (int j = 0; j < H; j++) scale[j] = vload((const float*)panel + j * VW);
        panel += kPanel * 4;
        const int64_t left = w.k - first, count = left < w.group ? left : w.group;
        for (int64_t i = 0; i < count; i += Codes::columns, panel += kPanel, x += C * Codes::columns) {
            V row[Codes::columns][H];
            Codes::numbers(codes, panel, row);
            UNROLL for (int column = 0; column < Codes::columns; column++) {
                UNROLL for (int j = 0; j < H; j++) row[column][j] = vmul(row[column][j], scale[j]);
                UNROLL for (int m = 0; m < C; m++) {
                    const V b = vset1(x[column * C + m]);
                    UNROLL for (int j = 0; j < H; j++) z[m][j] = vfma(row[column][j], b, z[m][j]);
                }
            }
        }
    }
    UNROLL for (int m = 0; m < C; m++)
        UNROLL for (int j = 0; j < H; j++) vstore(out + m * 16 + j * VW, z[m][j]);
}

// Bytes by which one token's products with floats or codes ask for a line before they meet it. CPUs that leave it to
// themselves get 4 to 25 GB/s, by the instructions a line takes; asked, 10 to 30.
constexpr int64_t kRowAhead = 2048;

// One token's products with P panels: as many chains, for each waits for its last sum.
template <int P, class Codes> __attribute__((noinline)) void coded_row(const Matrix& w, const uint8_t* panel, const float* x, float* out) {
    enum { H = kHalves, kLineSteps = 64 / kPanel };
    const Codes codes(codes_of(w.layout));
    const int64_t apart = w.panel_bytes;
    V z[P][H];
    UNROLL for (int p = 0; p < P; p++)
        UNROLL for (int j = 0; j < H; j++) z[p][j] = vzero();
    int64_t step = 0;
    for (int64_t first = 0; first < w.k; first += w.group) {
        V scale[P][H];
        UNROLL for (int p = 0; p < P; p++)
            UNROLL for (int j = 0; j < H; j++) scale[p][j] = vload((const float*)(panel + p * apart) + j * VW);
        panel += kPanel * 4;
        const int64_t left = w.k - first, count = left < w.group ? left : w.group;
        for (int64_t i = 0; i < count; i += Codes::columns, panel += kPanel, x += Codes::columns, step++) {
            if (step % kLineSteps == 0) UNROLL for (int p = 0; p < P; p++) prefetch_far(panel + p * apart + kRowAhead);
            UNROLL for (int p = 0; p < P; p++) {
                V row[Codes::columns][H];
                Codes::numbers(codes, panel + p * apart, row);
                UNROLL for (int column = 0; column < Codes::columns; column++) {
                    const V b = vset1(x[column]);
                    UNROLL for (int j = 0; j < H; j++) z[p][j] = vfma(vmul(row[column][j], scale[p][j]), b, z[p][j]);
                }
            }
        }
    }
    UNROLL for (int p = 0; p < P; p++)
        UNROLL for (int j = 0; j < H; j++) vstore(out + p * 16 + j * VW, z[p][j]);
}

// Column k of row `lane` of a panel.
SIMD float coded_entry(const Matrix& w, const uint8_t* panel, int64_t lane, int64_t k) {
    const int64_t at = k % w.group;
    const uint8_t* group = panel + k / w.group * coded_group_bytes(w, w.group);
    const float scale = ((const float*)group)[lane];
    group += kPanel * 4;
    if (w.layout == Layout::F8) {
        const uint8_t code = group[at * kPanel + lane];
        return widen_f16((uint16_t)((code & 128) << 8 | (code & 127) << 7)) * scale;
    }
    const uint8_t pair = group[at / 2 * kPanel + lane];
    return codes_of(w.layout)[at % 2 ? pair >> 4 : pair & 15] * scale;
}
