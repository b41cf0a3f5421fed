// The two products of attention over a block of 32 positions of integer pages, in 16-bit integers with sums
// of 32 bits: twice as many to an instruction as f32 has, and exact in whatever order. Where the rounding
// lies, and why no sum overflows, is written in round16.inl.
//
//   q   [d / 2][R][2], a factor for each row
//   k   [d / 2][32][2], as two halves; a factor for each position
//   p   [R][32], rows as far apart as 32 floats, a factor for each
//   v   [16][dvp][2], as two halves: pairs of positions

SIMD int64_t pairs_of(int64_t d) { return (d + 1) / 2; }

// Halves of a block, or chunks of 16 columns, that a tile of R rows has registers for: sums, columns, and two more.
constexpr int fitting(int rows, int most) {
    while (most > 1 && (rows * most + 1) * (16 / VW) + 2 > REGISTERS) most /= 2;
    return most;
}
// Whether it has them for all columns at once. If not, each column's pairs are fetched anew: compilers would rather
// keep them, and put sums on the stack.
constexpr bool fits_columns(int rows, int n) { return (rows + 1) * n * (16 / VW) + 2 <= REGISTERS; }

// Into a register, for the products of all rows.
template <class E> SIMD VI viload_once(const E* at) {
    VI x = viload(at);
    vikeep(x);
    return x;
}

template <int R, int N, Asked ASKED, class E> // N halves, from `first` on
SIMD void score_halves(const int16_t* q, const Halves<E>& k, int first, int64_t pairs, const float* factor,
                       const float* scale, float* s) {
    enum { H = 16 / VW, COLUMN = fits_columns(R, N) ? N : 1 };
    VI z[R][N * H];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < N * H; j++) z[r][j] = vizero();
    for (int64_t i = 0; i < pairs; i++, q += 2 * R) {
        const int64_t at = i * k.stride;
        UNROLL for (int first_column = 0; first_column < N; first_column += COLUMN) {
            VI column[COLUMN * H];
            UNROLL for (int n = 0; n < COLUMN; n++) {
                const int half = first + first_column + n;
                if ((first_column + n) * 32 * sizeof(E) % 64 == 0) // once for a line
                    ask_twice<ASKED>(k, (2 * i + half) * 32 * (int64_t)sizeof(E));
                UNROLL for (int j = 0; j < H; j++) column[n * H + j] = viload_once(k.at[half] + at + 2 * j * VW);
            }
            UNROLL for (int r = 0; r < R; r++) {
                const VI b = vipair(q + 2 * r);
                UNROLL for (int j = 0; j < COLUMN * H; j++) vidot(z[r][first_column * H + j], column[j], b);
            }
            if (COLUMN < N) __asm__("" : "+r"(q));
        }
    }
    scale += 16 * first, s += 16 * first;
    UNROLL for (int r = 0; r < R; r++) {
        const V f = vset1(factor[r]);
        UNROLL for (int j = 0; j < N * H; j++)
            vstore(s + r * kRescale + j * VW, vmul(vmul(vi_float(z[r][j]), f), vload(scale + j * VW)));
    }
}

template <int R, Asked ASKED, class E>
__attribute__((noinline)) void scores_int(const int16_t* q, const Halves<E>& k, int64_t pairs, const float* factor,
                                          const float* scale, float* s) {
    constexpr int N = fitting(R, 2);
    for (int first = 0; first < 2; first += N) score_halves<R, N, ASKED>(q, k, first, pairs, factor, scale, s);
}

template <int R, int N, Asked ASKED, class E> // N times 16 columns, positions below `to`: the others weigh 0
SIMD void weigh_chunk(const int16_t* p, const Halves<E>& v, int64_t c, int64_t dvp, int to, const float* alpha,
                      const float* factor, float* o) {
    enum { H = 16 / VW, LINE = 2 / sizeof(E), COLUMN = fits_columns(R, N) ? N : 1 }; // LINE: chunks of a cache line
    VI z[R][N * H];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < N * H; j++) z[r][j] = vizero();
    for (int half = 0; half < 2; half++) {
        const E* row = v.at[half] + 2 * c;
        int64_t later = (c * kRescale + 16 * half * 16 * N) * (int64_t)sizeof(E); // in the parts that are asked for
        const int stop = to < 16 * half + 16 ? to : 16 * half + 16;
        for (int i = 16 * half; i < stop; i += 2, row += v.stride, later += 2 * 16 * N * (int64_t)sizeof(E)) {
            UNROLL for (int n = 0; n < N; n += LINE)
                ask_twice<ASKED>(v, later + 32 * n * (int64_t)sizeof(E));
            UNROLL for (int n = 0; n < N * H; n += COLUMN * H) {
                VI x[COLUMN * H];
                UNROLL for (int j = 0; j < COLUMN * H; j++) x[j] = viload_once(row + 2 * (n + j) * VW);
                UNROLL for (int r = 0; r < R; r++) {
                    const VI b = vipair(p + 2 * r * kRescale + i);
                    UNROLL for (int j = 0; j < COLUMN * H; j++) vidot(z[r][n + j], x[j], b);
                }
                if (COLUMN < N) __asm__("" : "+r"(p));
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) { // o = alpha o + factor (sum of the block)
        const V a = vset1(alpha[r]), f = vset1(factor[r]);
        UNROLL for (int j = 0; j < N * H; j++) {
            float* at = o + r * dvp + c + j * VW;
            vstore(at, vfma(vi_float(z[r][j]), f, vmul(vload(at), a)));
        }
    }
}

template <int R, Asked ASKED, class E>
__attribute__((noinline)) void weigh_int(const int16_t* p, const Halves<E>& v, int64_t dvp, int to, const float* alpha,
                                         const float* factor, float* o) {
    constexpr int N = fitting(R, 4);
    int64_t c = 0;
    for (; c + 16 * N <= dvp; c += 16 * N) weigh_chunk<R, N, ASKED>(p, v, c, dvp, to, alpha, factor, o);
    for (; N > 1 && c < dvp; c += 16) weigh_chunk<R, 1, ASKED>(p, v, c, dvp, to, alpha, factor, o);
}

template <Asked ASKED, class E>
void any_scores_int(int64_t rows, const int16_t* q, const Halves<E>& k, int64_t pairs, const float* factor,
                    const float* scale, float* s) {
    switch (rows) {
#define CASE(R) case R: return scores_int<R, ASKED>(q, k, pairs, factor, scale, s);
    ROW_CASES
#undef CASE
    }
}
template <Asked ASKED, class E>
void any_weigh_int(int64_t rows, const int16_t* p, const Halves<E>& v, int64_t dvp, int to,
                   const float* alpha, const float* factor, float* o) {
    switch (rows) {
#define CASE(R) case R: return weigh_int<R, ASKED>(p, v, dvp, to, alpha, factor, o);
    ROW_CASES
#undef CASE
    }
}

// The panel of the tile that starts with row r, and the weights of rows from r on.
SIMD int16_t* query_int(const Attend& w, int64_t r) { return (int16_t*)w.q + r * 2 * pairs_of(w.d); }
SIMD int16_t* weights_int(const Attend& w, int64_t r) { return (int16_t*)(w.s + r * kRescale); }

// Row i of a panel of c rows.
void load_query_int(const float* q, int64_t d, int64_t c, Bounds bounds, float scale, int16_t* panel, float* factor) {
    int16_t rounded[kMaxHead + 1];
    *factor = round_row(q, d, bounds, rounded) * scale;
    if (d % 2) rounded[d] = 0;
    if (c == ROWS) { // nearly always: places that are known
        for (int64_t j = 0; j < d; j += 2) __builtin_memcpy(panel + j * ROWS, rounded + j, 4);
        return;
    }
    for (int64_t j = 0; j < d; j += 2) __builtin_memcpy(panel + j * c, rounded + j, 4);
}

// Weights t >= 0 of a row [32], which the values' factors are part of, to 16 bits in their place. Of their
// four sums of 8, the largest becomes `most` before rounding moves every weight by half at most: they add up
// to 131,060 where `most` is 32,760, to 65,520 where it is 16,376. Where values are int8, the largest weight does.
SIMD void round_weights(float* t, float inverse) {
    const F t0 = load(t) * set1(inverse), t1 = load(t + 16) * set1(inverse);
    store_s16((int16_t*)t, to_int(t0));
    store_s16((int16_t*)t + 16, to_int(t1));
}
// most / largest sum, and the factor of such weights: 0 where they are below 2^-100, NaN where one is.
SIMD void weight_factors(F x, float most, float* inverse, float* factor) {
    const F tiny = set1(0x1p-100f);
    const M usable = both(less(tiny, x), less(x, set1(0x1p126f)));
    store8(inverse, select(usable, set1(most) / x, zero()));
    store8(factor, select(less(x, tiny), zero(), x * set1(1.0f / most)));
}
