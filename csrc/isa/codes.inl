// Numbers that are codes of floats, F8, NF4 and FP4, met by x as it is: widened to f32, times their scale, as
// kernels/coded.py does it. So an output has the bits that a panel of f32 of the same numbers gives it.

// E4M3 moved to f16's places is 2^-8 of the number, subnormals included: pack.cpp makes up for it in the scale.
struct F8Codes {
    enum : int64_t { columns = 1 }; // that 16 bytes hold of 16 rows
    explicit F8Codes(const float*) {}
#if defined(__AVX512F__)
    SIMD V numbers(const F8Codes&, const uint8_t* w, int, int) {
        const __m256i x = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)w)), 7); // two signs
        return _mm512_cvtph_ps(_mm256_and_si256(x, _mm256_set1_epi16((int16_t)0xbfff)));
    }
#elif defined(__AVX2__)
    SIMD V numbers(const F8Codes&, const uint8_t* w, int, int j) {
        const __m128i x = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)(w + 8 * j))), 7); // two signs
        return _mm256_cvtph_ps(_mm_and_si128(x, _mm_set1_epi16((int16_t)0xbfff)));
    }
#else
    SIMD V numbers(const F8Codes&, const uint8_t* w, int, int) {
        uint16_t halves[16];
        for (int i = 0; i < 16; i++) halves[i] = (uint16_t)((w[i] & 128) << 8 | (w[i] & 127) << 7);
        return vload_f16(halves);
    }
#endif
};

// Two columns to a byte, the first in the low nibble.
struct NibbleCodes {
    enum : int64_t { columns = 2 };
#if defined(__AVX512F__)
    __m512 table;
    explicit NibbleCodes(const float* codes) : table(_mm512_loadu_ps(codes)) {}
    SIMD V numbers(const NibbleCodes& of, const uint8_t* w, int column, int) {
        const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)w));
        return _mm512_permutexvar_ps(column ? _mm512_srli_epi32(x, 4) : x, of.table); // by four bits of an index
    }
#elif defined(__AVX2__)
    __m256 table[2];
    explicit NibbleCodes(const float* codes) : table{_mm256_loadu_ps(codes), _mm256_loadu_ps(codes + 8)} {}
    SIMD V numbers(const NibbleCodes& of, const uint8_t* w, int column, int j) {
        __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(w + 8 * j)));
        if (column) x = _mm256_srli_epi32(x, 4);
        const __m256 fourth = _mm256_castsi256_ps(_mm256_slli_epi32(x, 28)); // an index has three bits
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(of.table[0], x), _mm256_permutevar8x32_ps(of.table[1], x), fourth);
    }
#else
    const float* table;
    explicit NibbleCodes(const float* codes) : table(codes) {}
    SIMD V numbers(const NibbleCodes& of, const uint8_t* w, int column, int) {
        V x{};
        for (int i = 0; i < 16; i++) x[i] = of.table[column ? w[i] >> 4 : w[i] & 15];
        return x;
    }
#endif
};

// One fused multiply-add chain per output, k ascending.
template <int C, class Codes> __attribute__((noinline)) void coded_panel(const Matrix& w, const uint8_t* panel, const float* x, float* out) {
    enum { H = 16 / VW };
    const Codes codes(codes_of(w.layout));
    V z[C][H];
    UNROLL for (int m = 0; m < C; m++)
        UNROLL for (int j = 0; j < H; j++) z[m][j] = vzero();
    for (int64_t first = 0; first < w.k; first += w.group) {
        V scale[H];
        UNROLL for (int j = 0; j < H; j++) scale[j] = vload((const float*)panel + j * VW);
        panel += kPanel * 4;
        const int64_t left = w.k - first, count = left < w.group ? left : w.group;
        for (int64_t i = 0; i < count; i += Codes::columns, panel += kPanel, x += C * Codes::columns)
            UNROLL for (int column = 0; column < Codes::columns; column++) {
                V row[H];
                UNROLL for (int j = 0; j < H; j++) row[j] = vmul(Codes::numbers(codes, panel, column, j), scale[j]);
                UNROLL for (int m = 0; m < C; m++) {
                    const V b = vset1(x[column * C + m]);
                    UNROLL for (int j = 0; j < H; j++) z[m][j] = vfma(row[j], b, z[m][j]);
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
    enum { H = 16 / VW, kLineSteps = 64 / kPanel };
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
            UNROLL for (int column = 0; column < Codes::columns; column++) {
                const V b = vset1(x[column]);
                UNROLL for (int p = 0; p < P; p++)
                    UNROLL for (int j = 0; j < H; j++)
                        z[p][j] = vfma(vmul(Codes::numbers(codes, panel + p * apart, column, j), scale[p][j]), b, z[p][j]);
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
