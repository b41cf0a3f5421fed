// Scores to weights, block by block, and how partial results meet.

// The positions of a block that a row sees.
struct Range { int from, to; };
SIMD Range seen_in(const Attend& w, int64_t r, int64_t block) {
    const int64_t low = ((const int32_t*)w.low)[r] - block, high = ((const int32_t*)w.high)[r] - block;
    return {(int)(low > 0 ? low : 0), (int)(high < kRescale ? high : (int64_t)kRescale)};
}

// Lanes that are positions from <= start + lane < to of a block.
SIMD M within(Range seen, int start) {
    const F at = to_float(loadi(kLanes)) + set1((float)start);
    return both(less(set1((float)seen.from - 0.5f), at), less(at, set1((float)seen.to - 0.5f)));
}

// What only some models and some blocks have: a soft cap, biases of the distance, positions that are not seen.
void restrain(const AttentionArgs& a, const AttentionItem& item, const Attend& w, int64_t r, int64_t block, Range seen,
              F (&x)[2]) {
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
        if (seen.from > 0 || seen.to < kRescale) x[i] = select(within(seen, 16 * i), x[i], set1(-__builtin_inff()));
    }
}

// Scores x of row r to weights, m and alpha being known; updates l. Of integer pages, what round_weights needs.
template <bool PLAIN, bool INT> SIMD float soften(const Attend& w, int64_t r, Range seen, const F (&x)[2]) {
    float* s = w.s + r * kRescale;
    const float now = w.m[r];
    const F base = set1(now == -__builtin_inff() ? 0.0f : now);
    const F p0 = exp2_negative(x[0] - base), p1 = exp2_negative(x[1] - base);
    store(w.l + 16 * r, fma(load(w.l + 16 * r), set1(w.alpha[r]), p0 + p1));
    F t0 = p0, t1 = p1;
    if (INT) { // the values' factors go to the weights
        t0 = p0 * load(w.v_scale), t1 = p1 * load(w.v_scale + 16);
        if (!PLAIN) { // the factors of what is not seen may be anything
            t0 = select(within(seen, 0), t0, zero());
            t1 = select(within(seen, 16), t1, zero());
        }
    }
    store(s, t0);
    store(s + 16, t1);
    if (!INT) return 0.0f;
    if (!w.small_values) return largest_of_fours(t0 + t1);
    return first_lane(from_bits(seti(rmaxi(maxi(bits(abs(t0)), bits(abs(t1))))))); // NaN where there is one
}

// The weights of a tile's rows to integers. Of a block of which a row sees nothing they are 0, and their
// factor -0: o = 1 o + -0 changes no bit.
template <bool PLAIN>
SIMD void round_tile(const Attend& w, int64_t begin, int64_t end, int64_t block, const float* largest) {
    float inverse[16];
    weight_factors(largest, w.most_weight, inverse, w.p_factor + begin); // of later rows too
    for (int64_t r = begin; r < end; r++) {
        const Range seen = PLAIN ? Range{0, kRescale} : seen_in(w, r, block);
        float* s = w.s + r * kRescale;
        if (seen.from < seen.to) {
            round_weights(s, inverse[r - begin]);
            continue;
        }
        __builtin_memset(s, 0, 2 * kRescale);
        w.alpha[r] = 1.0f, w.p_factor[r] = -0.0f;
    }
}

// Scores to weights for few rows: what is waited for is the length of the chain, which is shorter where
// the branch is guessed right.
template <bool PLAIN, bool INT>
__attribute__((noinline)) void soften_few(const AttentionArgs& a, const AttentionItem& item, const Attend& w,
                                          int64_t begin, int64_t end, int64_t block) {
    float largest_weights[16] = {};
    for (int64_t r = begin; r < end; r++) {
        const Range seen = PLAIN ? Range{0, kRescale} : seen_in(w, r, block);
        if (seen.from >= seen.to) continue;
        F x[2] = {load(w.s + r * kRescale), load(w.s + r * kRescale + 16)};
        if (!PLAIN) restrain(a, item, w, r, block, seen, x);
        const F larger = max(x[0], x[1]);
        w.alpha[r] = 1.0f;
        if (any(less(set1(w.m[r]), larger))) { // seldom, after the first blocks
            const float before = w.m[r];
            w.m[r] = rmax(larger);
            w.alpha[r] = exp2_negative(before - w.m[r]);
        }
        largest_weights[r - begin] = soften<PLAIN, INT>(w, r, seen, x);
    }
    if (INT) round_tile<PLAIN>(w, begin, end, block, largest_weights);
}

// The same for the rows of one tile (16 at most), without a branch that would be guessed wrong too often.
template <bool PLAIN, bool INT>
__attribute__((noinline)) void soften_many(const AttentionArgs& a, const AttentionItem& item, const Attend& w,
                                           int64_t begin, int64_t end, int64_t block) {
    float before[16] = {}, now[16] = {}, largest_weights[16] = {};
    for (int64_t r = begin; r < end; r++) {
        const Range seen = PLAIN ? Range{0, kRescale} : seen_in(w, r, block);
        before[r - begin] = now[r - begin] = w.m[r];
        if (seen.from >= seen.to) continue;
        float* s = w.s + r * kRescale;
        F x[2] = {load(s), load(s + 16)};
        if (!PLAIN) {
            restrain(a, item, w, r, block, seen, x);
            store(s, x[0]), store(s + 16, x[1]);
        }
        const F largest = max(set1(rmax(max(x[0], x[1]))), set1(w.m[r])); // m where x is NaN
        now[r - begin] = w.m[r] = first_lane(largest);
    }
    const F old = load(before), larger = load(now);
    store(w.alpha + begin, select(less(old, larger), exp2_negative(old - larger), set1(1.0f))); // of later rows too
    for (int64_t r = begin; r < end; r++) {
        const Range seen = PLAIN ? Range{0, kRescale} : seen_in(w, r, block);
        const F x[2] = {load(w.s + r * kRescale), load(w.s + r * kRescale + 16)};
        if (seen.from < seen.to) largest_weights[r - begin] = soften<PLAIN, INT>(w, r, seen, x);
    }
    if (INT) round_tile<PLAIN>(w, begin, end, block, largest_weights);
}

template <bool PLAIN, bool INT>
SIMD void soften_rows(const AttentionArgs& a, const AttentionItem& item, const Attend& w, int64_t begin, int64_t end,
                      int64_t block) {
    if (w.few) soften_few<PLAIN, INT>(a, item, w, begin, end, block);
    else soften_many<PLAIN, INT>(a, item, w, begin, end, block);
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
