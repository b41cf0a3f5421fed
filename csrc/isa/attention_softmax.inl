// Scores to weights, block by block, and how partial results meet.

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

// The positions of a block that a row sees.
struct Range { int from, to; };
SIMD Range seen_in(const Attend& w, int64_t r, int64_t block) {
    const int64_t low = ((const int32_t*)w.low)[r] - block, high = ((const int32_t*)w.high)[r] - block;
    return {(int)(low > 0 ? low : 0), (int)(high < kRescale ? high : (int64_t)kRescale)};
}

// A row's scores as they count.
template <bool PLAIN, bool S8>
SIMD void finish_scores(const AttentionArgs& a, const AttentionItem& item, const Attend& w, int64_t r, int64_t block,
                        Range seen, F (&x)[2]) {
    if (S8) x[0] = x[0] * load(w.k_scale), x[1] = x[1] * load(w.k_scale + 16);
    if (!PLAIN) restrain(a, item, w, r, block, seen.from, seen.to, x);
}

// Scores x of row r to weights, m and alpha being known; updates l.
template <bool S8> SIMD void soften(const Attend& w, int64_t r, const F (&x)[2]) {
    float* s = w.s + r * kRescale;
    const float now = w.m[r];
    const F base = set1(now == -__builtin_inff() ? 0.0f : now);
    const F p0 = exp2_negative(x[0] - base), p1 = exp2_negative(x[1] - base);
    store(w.l + 16 * r, fma(load(w.l + 16 * r), set1(w.alpha[r]), p0 + p1));
    if (S8) { // v = v_scale * int8: the scale goes to the weight
        store(s, p0 * load(w.v_scale));
        store(s + 16, p1 * load(w.v_scale + 16));
    } else {
        store(s, p0);
        store(s + 16, p1);
    }
}

// Scores to weights for few rows: what is waited for is the length of the chain, which is shorter where
// the branch is guessed right.
template <bool PLAIN, bool S8>
__attribute__((noinline)) void soften_few(const AttentionArgs& a, const AttentionItem& item, const Attend& w,
                                          int64_t begin, int64_t end, int64_t block) {
    for (int64_t r = begin; r < end; r++) {
        const Range seen = PLAIN ? Range{0, kRescale} : seen_in(w, r, block);
        if (seen.from >= seen.to) continue;
        F x[2] = {load(w.s + r * kRescale), load(w.s + r * kRescale + 16)};
        finish_scores<PLAIN, S8>(a, item, w, r, block, seen, x);
        const F larger = max(x[0], x[1]);
        w.alpha[r] = 1.0f;
        if (any(less(set1(w.m[r]), larger))) { // seldom, after the first blocks
            const float before = w.m[r];
            w.m[r] = rmax(larger);
            w.alpha[r] = exp2_negative(before - w.m[r]);
        }
        soften<S8>(w, r, x);
    }
}

// The same for the rows of one tile (16 at most), without a branch that would be guessed wrong too often.
template <bool PLAIN, bool S8>
__attribute__((noinline)) void soften_many(const AttentionArgs& a, const AttentionItem& item, const Attend& w,
                                           int64_t begin, int64_t end, int64_t block) {
    float before[16] = {}, now[16] = {};
    for (int64_t r = begin; r < end; r++) {
        const Range seen = PLAIN ? Range{0, kRescale} : seen_in(w, r, block);
        before[r - begin] = now[r - begin] = w.m[r];
        if (seen.from >= seen.to) continue;
        float* s = w.s + r * kRescale;
        F x[2] = {load(s), load(s + 16)};
        finish_scores<PLAIN, S8>(a, item, w, r, block, seen, x);
        if (S8 || !PLAIN) store(s, x[0]), store(s + 16, x[1]);
        const F largest = max(set1(rmax(max(x[0], x[1]))), set1(w.m[r])); // m where x is NaN
        now[r - begin] = w.m[r] = first_lane(largest);
    }
    const F old = load(before), larger = load(now);
    store(w.alpha + begin, select(less(old, larger), exp2_negative(old - larger), set1(1.0f))); // of later rows too
    for (int64_t r = begin; r < end; r++) {
        const Range seen = PLAIN ? Range{0, kRescale} : seen_in(w, r, block);
        const F x[2] = {load(w.s + r * kRescale), load(w.s + r * kRescale + 16)};
        if (seen.from < seen.to) soften<S8>(w, r, x);
    }
}

template <bool PLAIN, bool S8>
SIMD void soften_rows(const AttentionArgs& a, const AttentionItem& item, const Attend& w, int64_t begin, int64_t end,
                      int64_t block) {
    if (w.direct) soften_few<PLAIN, S8>(a, item, w, begin, end, block);
    else soften_many<PLAIN, S8>(a, item, w, begin, end, block);
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
