// Paged flash attention (Dao et al. 2022; split for decoding) over query rows that share a KV head.
//
// The unit of everything is a block of 32 positions, counted from position 0, whatever the page size.
// For one query row, in this order: scores (one chain of fused multiply-adds over the head's
// dimensions each), the block's maximum if it exceeds those before, exponentials, their sums by lane,
// the rescaling of o, and one chain over the block's positions for each element of o. 8 blocks make a
// split; splits start from nothing and are merged in order. Neither the number of rows nor the pieces
// of work change any of that, and positions that a row does not see take no part in it.
//
// Scores are kept times log2(e), so that 2^x takes the place of e^x.

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

// Where few rows share a block, widening it first costs more than it saves: these read the pages. A
// block is two halves of 16 positions, which may lie in two pages; `next` is what the block after this
// one will read, asked for while this one is computed.
template <class T> struct Halves {
    const T* at[2];
    const T* next[2];
    int64_t stride; // elements from one row to the next
};

template <int R, class T>
__attribute__((noinline)) void scores_direct(const float* q, Halves<T> k, int64_t d, float* s) {
    enum { H = 16 / VW };
    V z[R][2 * H];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < 2 * H; j++) z[r][j] = vzero();
    for (int64_t i = 0; i < d; i++, q += R) {
        V b[R];
        UNROLL for (int r = 0; r < R; r++) b[r] = vset1(q[r]);
        UNROLL for (int half = 0; half < 2; half++) {
            const int64_t at = i * k.stride;
            prefetch(k.next[half] + at);
            UNROLL for (int j = 0; j < H; j++) {
                const V column = vload_as(k.at[half] + at + j * VW);
                UNROLL for (int r = 0; r < R; r++) z[r][half * H + j] = vfma(column, b[r], z[r][half * H + j]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < 2 * H; j++) vstore(s + r * kRescale + j * VW, z[r][j]);
}

template <int R, int NV, class T>
SIMD void weigh_direct_columns(const float* p, const Halves<T>& v, int64_t c, int64_t dvp, int from, int to,
                               const float* alpha, float* o) {
    V z[R][NV];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < NV; j++) z[r][j] = vmul(vload(o + c + r * dvp + j * VW), vset1(alpha[r]));
    constexpr int LINE = 64 > VW * (int)sizeof(T) ? 64 / (VW * (int)sizeof(T)) : 1; // vectors in a cache line
    for (int half = 0; half < 2; half++) {
        const int low = from > 16 * half ? from : 16 * half, high = to < 16 * half + 16 ? to : 16 * half + 16;
        const T* row = v.at[half] + (low - 16 * half) * v.stride + c;
        const T* next = v.next[half] + (low - 16 * half) * v.stride + c;
        for (int i = low; i < high; i++, row += v.stride, next += v.stride) {
            UNROLL for (int j = 0; j < NV; j += LINE) prefetch(next + j * VW);
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

template <int R, class T>
__attribute__((noinline)) void weigh_direct(const float* p, Halves<T> v, int64_t dvp, int from, int to,
                                            const float* alpha, float* o) {
    int64_t c = 0;
    for (; c + 4 * VW <= dvp; c += 4 * VW) weigh_direct_columns<R, 4>(p, v, c, dvp, from, to, alpha, o);
    for (; c < dvp; c += VW) weigh_direct_columns<R, 1>(p, v, c, dvp, from, to, alpha, o);
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
template <class T> void any_scores_direct(int64_t rows, const float* q, const Halves<T>& k, int64_t d, float* s) {
    switch (rows) {
#define CASE(R) case R: return scores_direct<R>(q, k, d, s);
    DIRECT_CASES
#undef CASE
    }
}
template <class T>
void any_weigh_direct(int64_t rows, const float* p, const Halves<T>& v, int64_t dvp, int from, int to,
                      const float* alpha, float* o) {
    switch (rows) {
#define CASE(R) case R: return weigh_direct<R>(p, v, dvp, from, to, alpha, o);
    DIRECT_CASES
#undef CASE
    }
}

int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// Scratch of one item; every array is 64-byte aligned.
struct Attend {
    int64_t rows, group, d, dv, dvp;
    bool direct;  // blocks are read from the pages, not widened first
    int64_t most; // rows of a tile
    float* q;     // panels [d][rows of the tile], scaled
    float* s;     // [rows][32] scores, then weights
    float* o;     // [rows][dvp] of the current split
    float* total; // [rows][dvp] of the splits before
    float* k;     // [d][32]
    float* v;     // [32][dvp]
    float* l;                                     // [rows][16] sums by lane of the current split
    float *m, *total_m, *total_l, *alpha;         // [rows]
    float *k_scale, *v_scale, *low, *high;        // [32] int8 scales; [rows] visible range (as int32)
};

int64_t attention_scratch(int64_t rows, int64_t d, int64_t dv) {
    const int64_t dvp = padded(dv), r = padded(rows);
    return (r * d + r * kRescale + 2 * r * dvp + d * kRescale + kRescale * dvp + 22 * r + 2 * kRescale + 64) * 4;
}

Attend layout_scratch(float* at, int64_t rows, int64_t group, int64_t d, int64_t dv) {
    const int64_t dvp = padded(dv), r = padded(rows);
    Attend w;
    w.rows = rows, w.group = group, w.d = d, w.dv = dv, w.dvp = dvp;
    w.q = at, at += r * d;
    w.s = at, at += r * kRescale;
    w.o = at, at += r * dvp;
    w.total = at, at += r * dvp;
    w.k = at, at += d * kRescale;
    w.v = at, at += kRescale * dvp;
    w.m = at, at += r;
    w.l = at, at += 16 * r;
    w.total_m = at, at += r;
    w.total_l = at, at += r;
    w.alpha = at, at += r;
    w.low = at, at += r;
    w.high = at, at += r;
    w.k_scale = at, at += kRescale;
    w.v_scale = at;
    return w;
}

// Rows of n numbers of a page, `stride` apart, to f32 rows `width` apart.
template <class T> void widen_rows(const T* from, int64_t stride, int64_t rows, int64_t n, float* to, int64_t width) {
    for (int64_t r = 0; r < rows; r++, from += stride, to += width) {
        int64_t i = 0;
        for (; i + 16 <= n; i += 16)
            UNROLL for (int j = 0; j < 16; j += VW) vstore(to + i + j, vload_as(from + i + j));
        for (; i < n; i++) to[i] = widen_one(from[i]);
    }
}

// Where the two halves of a block lie. Halves past the context are given the first one: what is read
// there is masked.
template <class T> void find_halves(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end,
                                    const T* (&k)[2], const T* (&v)[2]) {
    const KVView& kv = a.kv;
    const int32_t* table = a.page_tables + item.sequence * a.table_width;
    for (int half = 0; half < 2; half++) {
        const int64_t position = block + 16 * half;
        if (position >= end) {
            k[half] = k[0], v[half] = v[0];
            continue;
        }
        const uint8_t* page = kv.base + table[position / kv.page_size] * kv.page_stride;
        const int64_t offset = position % kv.page_size;
        k[half] = (const T*)(page + kv.k_at) + item.head * kv.d * kv.page_size + offset;
        v[half] = (const T*)(page + kv.v_at) + (item.head * kv.page_size + offset) * kv.dv;
    }
}

// K and V of positions [from, to) of the block at `block`, page by page; K's other columns are 0.
template <class T>
void load_block(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t from, int64_t to, Attend& w) {
    const KVView& kv = a.kv;
    const int32_t* table = a.page_tables + item.sequence * a.table_width;
    if (to - from < kRescale) __builtin_memset(w.k, 0, w.d * kRescale * 4);
    for (int64_t j = from; j < to;) {
        const int64_t offset = j % kv.page_size, left = kv.page_size - offset;
        const int64_t n = to - j < left ? to - j : left, column = j - block;
        const uint8_t* page = kv.base + table[j / kv.page_size] * kv.page_stride;
        widen_rows((const T*)(page + kv.k_at) + item.head * kv.d * kv.page_size + offset, kv.page_size, w.d, n,
                   w.k + column, kRescale);
        const int64_t row = item.head * kv.page_size + offset;
        const T* v = (const T*)(page + kv.v_at) + row * kv.dv;
        if (kv.latent) values_of_latent(w.k, w.dv, w.dvp, column, column + n, w.v);
        else if (w.dv == w.dvp) widen_rows(v, 0, 1, n * w.dv, w.v + column * w.dvp, 0);
        else widen_rows(v, kv.dv, n, w.dv, w.v + column * w.dvp, w.dvp);
        if (kv.type == KVType::S8) {
            __builtin_memcpy(w.k_scale + column, (const float*)(page + kv.ks_at) + row, n * 4);
            __builtin_memcpy(w.v_scale + column, (const float*)(page + kv.vs_at) + row, n * 4);
        }
        j += n;
    }
}

// use(column, k scales, v scales) for each 16 positions of a block, where pages are multiples of 16.
template <class Use>
SIMD void each_scales(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end, const Use& use) {
    const KVView& kv = a.kv;
    const int32_t* table = a.page_tables + item.sequence * a.table_width;
    for (int64_t j = block; j < end && j < block + kRescale; j += 16) {
        const uint8_t* page = kv.base + table[j / kv.page_size] * kv.page_stride;
        const int64_t row = item.head * kv.page_size + j % kv.page_size;
        use(j - block, (const float*)(page + kv.ks_at) + row, (const float*)(page + kv.vs_at) + row);
    }
}
void copy_scales(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end, Attend& w) {
    each_scales(a, item, block, end, [&w](int64_t column, const float* ks, const float* vs) {
        __builtin_memcpy(w.k_scale + column, ks, 64);
        __builtin_memcpy(w.v_scale + column, vs, 64);
    });
}
void prefetch_scales(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end) {
    each_scales(a, item, block, end, [](int64_t, const float* ks, const float* vs) { prefetch(ks), prefetch(vs); });
}

// Ask for the block at `block`, up to `end`: pages lie apart, where the hardware does not look ahead.
template <class T> void prefetch_positions(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end) {
    const KVView& kv = a.kv;
    if (kv.page_size % 16) return;
    const T *k[2], *v[2];
    find_halves(a, item, block, end, k, v);
    if (kv.type == KVType::S8) prefetch_scales(a, item, block, end);
    const int64_t rows = 64 / (kv.page_size * (int64_t)sizeof(T)), step = rows > 1 ? rows : 1; // of K, in a line
    for (int half = 0; half < 2 && block + 16 * half < end; half++) {
        for (int64_t i = 0; i < kv.d; i += step) prefetch_far(k[half] + i * kv.page_size);
        if (!kv.latent)
            for (int64_t i = 0; i < 16 * kv.dv; i += 64 / (int64_t)sizeof(T)) prefetch_far(v[half] + i);
    }
}

// The first positions of the next item: on short contexts, every item's first pages are cold.
template <class T> void prefetch_item(const AttentionArgs& a, const AttentionItem& item) {
    const int64_t seen = a.causal ? a.positions[item.t1 - 1] + 1 : a.context_lens[item.sequence];
    const int64_t start = a.window ? a.positions[item.t0] - a.window + 1 : 0, first = item.c0 * kSplit;
    const int64_t block = (start > first ? start : first) / kRescale * kRescale;
    for (int64_t i = block; i < block + 2 * kRescale && i < seen; i += kRescale) prefetch_positions<T>(a, item, i, seen);
}

// What only some models and some blocks have: a soft cap, biases of the distance, positions that are not seen.
void restrain(const AttentionArgs& a, const AttentionItem& item, const Attend& w, int64_t r, int64_t block, int from,
              int to, F (&x)[2]) {
    const int64_t head = item.head * w.group + r % w.group;
    const int64_t distance = block - a.positions[item.t0 + r / w.group];
    const F lane = to_float(loadi(kLanes));
    for (int i = 0; i < 2; i++) {
        if (a.softcap != 0.0f) x[i] = set1(a.softcap * kLog2e) * tanh(x[i] / set1(a.softcap));
        if (a.slopes) x[i] = fma(set1(a.slopes[head] * kLog2e), lane + set1((float)(distance + 16 * i)), x[i]);
        if (a.bias) {
            const int64_t ends = a.reach + kRescale, near = distance > a.reach ? a.reach : distance;
            const float* bias = a.bias + head * (2 * ends + 1) + (near < -ends ? 0 : near + ends);
            x[i] = fma(set1(kLog2e), load(bias + 16 * i), x[i]);
        }
        if (from > 0 || to < kRescale) {
            const F at = lane + set1((float)(16 * i));
            const M seen = both(less(set1((float)from - 0.5f), at), less(at, set1((float)to - 0.5f)));
            x[i] = select(seen, x[i], set1(-__builtin_inff()));
        }
    }
}

// Scores to weights for one row of which positions [from, to) of the block are seen; updates m and l,
// leaves the factor of o in alpha. PLAIN: all are seen, and nothing but the scores counts.
template <bool PLAIN, bool S8>
SIMD void soften(const AttentionArgs& a, const AttentionItem& item, Attend& w, int64_t r, int64_t block, int from,
                 int to) {
    float* s = w.s + r * kRescale;
    F x[2] = {load(s), load(s + 16)};
    if (S8) x[0] = x[0] * load(w.k_scale), x[1] = x[1] * load(w.k_scale + 16);
    if (!PLAIN) restrain(a, item, w, r, block, from, to, x);
    const float before = w.m[r];
    const F larger = max(x[0], x[1]);
    float now = before, alpha = 1.0f;
    if (any(less(set1(before), larger))) { // seldom, after the first blocks
        now = rmax(larger);
        alpha = exp2_negative(before - now);
        w.m[r] = now;
    }
    const F base = set1(now == -__builtin_inff() ? 0.0f : now);
    const F p0 = exp2_negative(x[0] - base), p1 = exp2_negative(x[1] - base);
    w.alpha[r] = alpha;
    store(w.l + 16 * r, fma(load(w.l + 16 * r), set1(alpha), p0 + p1));
    if (S8) { // v = v_scale * int8: the scale goes to the weight
        store(s, p0 * load(w.v_scale));
        store(s + 16, p1 * load(w.v_scale + 16));
    } else {
        store(s, p0);
        store(s + 16, p1);
    }
}

// (total, total_m, total_l) += (o, m, l): how partial results meet, always in the order of splits.
void merge_row(float* total, float* total_m, float* total_l, const float* o, float m, float l, int64_t dvp) {
    if (m == -__builtin_inff() && l == 0.0f) return; // nothing of this split was seen
    const float now = m > *total_m ? m : *total_m;
    F old_factor = exp2_negative(set1(*total_m - now)), new_factor = exp2_negative(set1(m - now));
    if (*total_m == -__builtin_inff()) old_factor = zero();
    for (int64_t i = 0; i < dvp; i += 16) store(total + i, fma(load(o + i), new_factor, load(total + i) * old_factor));
    *total_l = *total_l * first_lane(old_factor) + l * first_lane(new_factor);
    *total_m = now;
}

void write_row(const float* total, float m, float l, const float* sink, int64_t dv, float* y) {
    float factor = 1.0f;
    if (sink) { // one more logit, whose value is nothing
        const float log_sink = *sink * kLog2e, now = log_sink > m ? log_sink : m;
        factor = exp2_negative(m - now);
        l = l * factor + exp2_negative(log_sink - now);
    }
    for (int64_t i = 0; i < dv; i += 16) {
        const F x = load(total + i) * set1(factor) / set1(l);
        if (dv - i >= 16) store(y + i, x);
        else store_n(y + i, x, dv - i);
    }
}

// How a block's products are computed: from widened copies in scratch, or from the pages.
struct Widened {
    const Attend& w;
    void scores(int64_t rows, const float* q, float* s) const { any_scores(rows, q, w.k, w.d, s); }
    void weigh(int64_t rows, const float* p, int from, int to, const float* alpha, float* o) const {
        any_weigh(rows, p, w.v, w.dvp, from, to, alpha, o);
    }
};
template <class T> struct Direct {
    const Attend& w;
    Halves<T> k, v;
    void scores(int64_t rows, const float* q, float* s) const { any_scores_direct(rows, q, k, w.d, s); }
    void weigh(int64_t rows, const float* p, int from, int to, const float* alpha, float* o) const {
        any_weigh_direct(rows, p, v, w.dvp, from, to, alpha, o);
    }
};

// The positions of a block that a row sees.
struct Range { int from, to; };
SIMD Range seen_in(const Attend& w, int64_t r, int64_t block) {
    const int64_t low = ((const int32_t*)w.low)[r] - block, high = ((const int32_t*)w.high)[r] - block;
    return {(int)(low > 0 ? low : 0), (int)(high < kRescale ? high : (int64_t)kRescale)};
}

template <bool PLAIN, bool S8>
__attribute__((noinline)) void soften_rows(const AttentionArgs& a, const AttentionItem& item, Attend& w, int64_t begin,
                                           int64_t end, int64_t block) {
    for (int64_t r = begin; r < end; r++) {
        const Range seen = PLAIN ? Range{0, kRescale} : seen_in(w, r, block);
        if (seen.from < seen.to) soften<PLAIN, S8>(a, item, w, r, block, seen.from, seen.to);
    }
}

template <class Products>
void attend_block(const AttentionArgs& a, const AttentionItem& item, int64_t block, Attend& w, const Products& products) {
    const auto* low = (const int32_t*)w.low;
    const auto* high = (const int32_t*)w.high;
    const Tiles tiles = split_tiles(w.rows, w.most);
    for (int64_t t = 0; t < tiles.count; t++) {
        const int64_t first_row = tile_start(tiles, t), c = tile_size(tiles, t);
        bool seen = false, whole = true;
        for (int64_t r = first_row; r < first_row + c; r++) {
            seen |= high[r] > block && low[r] < block + kRescale;
            whole &= high[r] >= block + kRescale && low[r] <= block;
        }
        if (!seen) continue;
        products.scores(c, w.q + first_row * w.d, w.s + first_row * kRescale);
        const bool plain = whole && a.softcap == 0.0f && !a.slopes && !a.bias;
        const bool s8 = a.kv.type == KVType::S8;
        if (plain && s8) soften_rows<true, true>(a, item, w, first_row, first_row + c, block);
        else if (plain) soften_rows<true, false>(a, item, w, first_row, first_row + c, block);
        else if (s8) soften_rows<false, true>(a, item, w, first_row, first_row + c, block);
        else soften_rows<false, false>(a, item, w, first_row, first_row + c, block);
        for (int64_t r = first_row, next; r < first_row + c; r = next) { // rows that see the same positions together
            for (next = r + 1; next < first_row + c && low[next] == low[r] && high[next] == high[r];) next++;
            const Range seen = seen_in(w, r, block);
            if (whole) next = first_row + c;
            if (seen.from < seen.to)
                products.weigh(next - r, w.s + r * kRescale, seen.from, seen.to, w.alpha + r, w.o + r * w.dvp);
        }
    }
}

template <class T>
void attend_directly(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end, Attend& w) {
    Direct<T> products{w, {}, {}};
    find_halves(a, item, block, end, products.k.at, products.v.at);
    const int64_t after = block + kRescale < end ? block + kRescale : block;
    find_halves(a, item, after, end, products.k.next, products.v.next);
    products.k.stride = a.kv.page_size;
    products.v.stride = a.kv.dv;
    if (a.kv.type == KVType::S8) {
        copy_scales(a, item, block, end, w);
        prefetch_scales(a, item, block + 4 * kRescale, end); // scattered: nothing else brings them
    }
    attend_block(a, item, block, w, products);
}

// Queries scaled into panels, and what each row may see: [low, high).
void load_queries(const AttentionArgs& a, const AttentionItem& item, Attend& w) {
    const Tiles tiles = split_tiles(w.rows, w.most);
    const float factor = a.softcap != 0.0f ? a.scale : a.scale * kLog2e;
    for (int64_t t = 0; t < tiles.count; t++) {
        const int64_t first_row = tile_start(tiles, t), c = tile_size(tiles, t);
        for (int64_t i = 0; i < c; i++) {
            const int64_t r = first_row + i, token = item.t0 + r / w.group;
            const float* q = a.q + (token * a.heads + item.head * w.group + r % w.group) * w.d;
            float* panel = w.q + first_row * w.d + i;
            for (int64_t j = 0; j < w.d; j++) panel[j * c] = q[j] * factor;
            const int64_t position = a.positions[token], start = position - a.window + 1;
            ((int32_t*)w.high)[r] = a.causal ? (int32_t)(position + 1) : a.context_lens[item.sequence];
            ((int32_t*)w.low)[r] = (int32_t)(a.window && start > 0 ? start : 0);
        }
    }
}

// One block of positions, of which [from, to) are seen by some row.
template <class T>
void attend_positions(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t from, int64_t to,
                      Attend& w) {
    if (w.direct) return attend_directly<T>(a, item, block, to, w);
    const int64_t after = block + kRescale;
    load_block<T>(a, item, block, block > from ? block : from, after < to ? after : to, w);
    if (after < to) prefetch_positions<T>(a, item, after, to);
    attend_block(a, item, block, w, Widened{w});
}

void prefetch_any(const AttentionArgs& a, const AttentionItem& item) {
    switch (a.kv.type) {
    case KVType::F32: return prefetch_item<float>(a, item);
    case KVType::F16: return prefetch_item<F16Element>(a, item);
    case KVType::BF16: return prefetch_item<BF16Element>(a, item);
    case KVType::S8: return prefetch_item<S8Element>(a, item);
    }
}

void attend_any(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t from, int64_t to, Attend& w) {
    switch (a.kv.type) {
    case KVType::F32: return attend_positions<float>(a, item, block, from, to, w);
    case KVType::F16: return attend_positions<F16Element>(a, item, block, from, to, w);
    case KVType::BF16: return attend_positions<BF16Element>(a, item, block, from, to, w);
    case KVType::S8: return attend_positions<S8Element>(a, item, block, from, to, w);
    }
}

void attention(const AttentionArgs& a, const AttentionItem& item, float* scratch) {
    const int64_t group = a.heads / a.kv.heads, rows = (item.t1 - item.t0) * group;
    Attend w = layout_scratch(scratch, rows, group, a.kv.d, a.kv.dv);
    w.direct = rows <= 2 * DIRECT_ROWS && a.kv.page_size % 16 == 0 && a.kv.dv % 16 == 0 && !a.kv.latent;
    w.most = w.direct ? DIRECT_ROWS : ROWS;
    load_queries(a, item, w);
    if (w.direct && item.soon) prefetch_any(a, *item.soon);
    int64_t from = INT32_MAX, to = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (((int32_t*)w.low)[r] < from) from = ((int32_t*)w.low)[r];
        if (((int32_t*)w.high)[r] > to) to = ((int32_t*)w.high)[r];
        w.total_m[r] = -__builtin_inff();
        w.total_l[r] = 0.0f;
    }
    if (w.dv != w.dvp) __builtin_memset(w.v, 0, kRescale * w.dvp * 4);
    __builtin_memset(w.total, 0, rows * w.dvp * 4);
    for (int64_t split = item.c0; split < item.c1; split++) {
        __builtin_memset(w.o, 0, rows * w.dvp * 4);
        __builtin_memset(w.l, 0, rows * 64);
        for (int64_t r = 0; r < rows; r++) w.m[r] = -__builtin_inff();
        for (int64_t block = split * kSplit; block < (split + 1) * kSplit && block < to; block += kRescale) {
            if (block + kRescale <= from) continue;
            attend_any(a, item, block, from, to, w);
        }
        for (int64_t r = 0; r < rows; r++) {
            const float l = rsum(load(w.l + 16 * r));
            if (item.partial) {
                float* p = item.partial + (r * item.splits + split - item.first_split) * (w.dvp + 16);
                __builtin_memcpy(p, w.o + r * w.dvp, w.dvp * 4);
                p[w.dvp] = w.m[r];
                p[w.dvp + 1] = l;
            } else
                merge_row(w.total + r * w.dvp, w.total_m + r, w.total_l + r, w.o + r * w.dvp, w.m[r], l, w.dvp);
        }
    }
    if (item.partial) return;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t token = item.t0 + r / group, head = item.head * group + r % group;
        write_row(w.total + r * w.dvp, w.total_m[r], w.total_l[r], a.sinks ? a.sinks + head : nullptr, w.dv,
                  a.y + (token * a.heads + head) * w.dv);
    }
}

// The first split's o becomes the running total, as in attention(): same operations, same bits.
void attention_merge(const float* partial, int64_t splits, int64_t dv, const float* sink, float* y) {
    const int64_t dvp = padded(dv);
    float total[kMaxHead];
    __builtin_memset(total, 0, dvp * 4);
    float m = -__builtin_inff(), l = 0.0f;
    for (int64_t i = 0; i < splits; i++) {
        const float* p = partial + i * (dvp + 16);
        merge_row(total, &m, &l, p, p[dvp], p[dvp + 1], dvp);
    }
    write_row(total, m, l, sink, dv, y);
}
