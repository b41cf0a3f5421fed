// The two products of attention over a block of 32 positions, scores and weighted values, in f32.

// Registers: ROWS query rows by COLUMNS vectors, plus operands. attention_shape gives both.
template <int R, int NV> SIMD void score_columns(const float* q, const float* k, int64_t d, float* s) {
    V z[R][NV];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < NV; j++) z[r][j] = vzero();
    for (int64_t i = 0; i < d; i++, q += R, k += kRescale) {
        V column[NV];
        UNROLL for (int j = 0; j < NV; j++) column[j] = vload(k + j * VW);
        UNROLL for (int r = 0; r < R; r++) {
            const V b = vset1(q[r]);
            UNROLL for (int j = 0; j < NV; j++) z[r][j] = vfma(column[j], b, z[r][j]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < NV; j++) vstore(s + r * kRescale + j * VW, z[r][j]);
}

// q [d][R], k [d][32] -> s [R][32]
template <int R> __attribute__((noinline)) void scores(const float* q, const float* k, int64_t d, float* s) {
    for (int c = 0; c < kRescale; c += COLUMNS * VW) score_columns<R, COLUMNS>(q, k + c, d, s + c);
}

template <int R, int NV> SIMD void weigh_columns(const float* p, const float* v, int64_t dvp, int from, int to,
                                                 const float* alpha, float* o) {
    V z[R][NV];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < NV; j++) z[r][j] = vmul(vload(o + r * dvp + j * VW), vset1(alpha[r]));
    v += from * dvp;
    for (int i = from; i < to; i++, v += dvp) {
        V row[NV];
        UNROLL for (int j = 0; j < NV; j++) row[j] = vload(v + j * VW);
        UNROLL for (int r = 0; r < R; r++) {
            const V b = vset1(p[r * kRescale + i]);
            UNROLL for (int j = 0; j < NV; j++) z[r][j] = vfma(row[j], b, z[r][j]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < NV; j++) vstore(o + r * dvp + j * VW, z[r][j]);
}

// o [R][dvp] = alpha o + p [R][32] v [32][dvp], positions from <= i < to.
template <int R> __attribute__((noinline)) void weigh(const float* p, const float* v, int64_t dvp, int from, int to,
                                                      const float* alpha, float* o) {
    int64_t c = 0;
    for (; c + COLUMNS * VW <= dvp; c += COLUMNS * VW)
        weigh_columns<R, COLUMNS>(p, v + c, dvp, from, to, alpha, o + c);
    for (; c < dvp; c += VW) weigh_columns<R, 1>(p, v + c, dvp, from, to, alpha, o + c);
}

// Where few rows share a block, widening it first costs more than it saves: these read the pages.

template <int R, Asked ASKED, class T>
__attribute__((noinline)) void scores_direct(const float* q, const Halves<T>& k, int64_t d, float* s) {
    enum { H = 16 / VW };
    V z[R][2 * H];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < 2 * H; j++) z[r][j] = vzero();
    for (int64_t i = 0; i < d; i++, q += R) {
        V b[R];
        UNROLL for (int r = 0; r < R; r++) b[r] = vset1(q[r]);
        UNROLL for (int half = 0; half < 2; half++) {
            const int64_t at = i * k.stride;
            if (half * 16 * sizeof(T) % 64 == 0) ask_twice<ASKED>(k, (2 * i + half) * 16 * (int64_t)sizeof(T));
            UNROLL for (int j = 0; j < H; j++) {
                const V column = vload_as(k.at[half] + at + j * VW);
                UNROLL for (int r = 0; r < R; r++) z[r][half * H + j] = vfma(column, b[r], z[r][half * H + j]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < 2 * H; j++) vstore(s + r * kRescale + j * VW, z[r][j]);
}

template <int R, int NV, Asked ASKED, class T>
SIMD void weigh_direct_columns(const float* p, const Halves<T>& v, int64_t c, int64_t dvp, int from, int to,
                               const float* alpha, float* o) {
    V z[R][NV];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < NV; j++) z[r][j] = vmul(vload(o + c + r * dvp + j * VW), vset1(alpha[r]));
    constexpr int LINE = 64 > VW * (int)sizeof(T) ? 64 / (VW * (int)sizeof(T)) : 1; // vectors in a cache line
    for (int half = 0; half < 2; half++) {
        const int low = from > 16 * half ? from : 16 * half, high = to < 16 * half + 16 ? to : 16 * half + 16;
        const T* row = v.at[half] + (low - 16 * half) * v.stride + c;
        int64_t later = (c * kRescale + low * NV * VW) * (int64_t)sizeof(T); // in the parts that are asked for
        for (int i = low; i < high; i++, row += v.stride, later += NV * VW * (int64_t)sizeof(T)) {
            UNROLL for (int j = 0; j < NV; j += LINE) ask_twice<ASKED>(v, later + j * VW * (int64_t)sizeof(T));
            V b[R];
            UNROLL for (int r = 0; r < R; r++) b[r] = vset1(p[r * kRescale + i]);
            UNROLL for (int j = 0; j < NV; j++) {
                const V x = vload_as(row + j * VW);
                UNROLL for (int r = 0; r < R; r++) z[r][j] = vfma(x, b[r], z[r][j]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < NV; j++) vstore(o + c + r * dvp + j * VW, z[r][j]);
}

template <int R, Asked ASKED, class T>
__attribute__((noinline)) void weigh_direct(const float* p, const Halves<T>& v, int64_t dvp, int from, int to,
                                            const float* alpha, float* o) {
    int64_t c = 0;
    for (; c + 4 * VW <= dvp; c += 4 * VW) weigh_direct_columns<R, 4, ASKED>(p, v, c, dvp, from, to, alpha, o);
    for (; c < dvp; c += VW) weigh_direct_columns<R, 1, ASKED>(p, v, c, dvp, from, to, alpha, o);
}

#define ROW_CASES CASE(1) CASE(2) CASE(3) CASE(4) ROW_CASES_ABOVE_4
#if ROWS > 4
#define ROW_CASES_ABOVE_4 CASE(5) CASE(6) ROW_CASES_ABOVE_6
#else
#define ROW_CASES_ABOVE_4
#endif
#if ROWS > 6
#define ROW_CASES_ABOVE_6 CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#else
#define ROW_CASES_ABOVE_6
#endif

void any_scores(int64_t rows, const float* q, const float* k, int64_t d, float* s) {
    switch (rows) {
#define CASE(R) case R: return scores<R>(q, k, d, s);
    ROW_CASES
#undef CASE
    }
}
void any_weigh(int64_t rows, const float* p, const float* v, int64_t dvp, int from, int to, const float* alpha,
               float* o) {
    switch (rows) {
#define CASE(R) case R: return weigh<R>(p, v, dvp, from, to, alpha, o);
    ROW_CASES
#undef CASE
    }
}

#if DIRECT_ROWS > 3
#define DIRECT_CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#else
#define DIRECT_CASES CASE(1) CASE(2) CASE(3)
#endif
template <Asked ASKED, class T>
void any_scores_direct(int64_t rows, const float* q, const Halves<T>& k, int64_t d, float* s) {
    switch (rows) {
#define CASE(R) case R: return scores_direct<R, ASKED>(q, k, d, s);
    DIRECT_CASES
#undef CASE
    }
}
template <Asked ASKED, class T>
void any_weigh_direct(int64_t rows, const float* p, const Halves<T>& v, int64_t dvp, int from, int to,
                      const float* alpha, float* o) {
    switch (rows) {
#define CASE(R) case R: return weigh_direct<R, ASKED>(p, v, dvp, from, to, alpha, o);
    DIRECT_CASES
#undef CASE
    }
}
