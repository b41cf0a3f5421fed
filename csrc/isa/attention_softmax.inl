// Scores to weights, block by block, and how partial results meet.

// The positions of a block that a row sees.
struct Range { int from, to; };
SIMD Range seen_in(const Attend& w, int64_t r, int64_t block) {
    const int64_t low = ((const int32_t*)w.low)[r] - block, high = ((const int32_t*)w.high)[r] - block;
    return {.from = (int)(low > 0 ? low : 0), .to = (int)(high < kRescale ? high : (int64_t)kRescale)};
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

SIMD float* maximum_of(const Attend& w, const Tiles& tiles, int64_t r) {
    const int64_t t = tile_of(tiles, r);
    return w.m + kTileRows * t + r - tile_start(tiles, t);
}

// The scores' limits, and what of them is the largest.
template <bool PLAIN>
SIMD void find_tops_if(const AttentionArgs& a, const AttentionItem& item, const Attend& w, int64_t block, Softening& of) {
    for (int64_t r = of.tile.begin; r < of.tile.end; r++) {
        float *s = w.s + r * kRescale, *top = of.top + 4 * (r - of.tile.begin);
        F x[2] = {load(s), load(s + 16)};
        if (!PLAIN) {
            const Range seen = seen_in(w, r, block);
            if (seen.from >= seen.to) {
                fold_max(top, set1(-__builtin_inff()));
                continue;
            }
            restrain(a, item, w, r, block, seen, x);
            store(s, x[0]), store(s + 16, x[1]);
        }
        fold_max(top, max(x[0], x[1]));
    }
}

// m and alpha of the rows.
SIMD void raise_maxima(const Attend& w, Softening& of) {
    float* m = w.m + kTileRows * of.tile.index;
    const F old = load8(m), now = max(rows_max(of.top), old); // m where a score is NaN
    store8(m, now);
    store8(of.alpha, select(less(old, now), exp2_negative(old - now), set1(1.0f)));
    store8(of.base, select(less(set1(-__builtin_inff()), now), now, zero()));
}

// Scores to weights, and l; of integer pages also what round_tile needs.
template <bool PLAIN, bool INT>
SIMD void soften_if(const Attend& w, int64_t block, Softening& of) {
    const int64_t begin = of.tile.begin;
    for (int64_t r = begin; r < of.tile.end; r++) {
        const Range seen = PLAIN ? Range{.from = 0, .to = kRescale} : seen_in(w, r, block);
        if (seen.from >= seen.to) continue;
        float *s = w.s + r * kRescale, *l = w.l + 16 * r, *top = of.top + 4 * (r - begin);
        const F base = set1(of.base[r - begin]), x0 = load(s) - base, x1 = load(s + 16) - base;
        F t0 = INT ? exp2_rounded(x0) : exp2_negative(x0), t1 = INT ? exp2_rounded(x1) : exp2_negative(x1);
        store(l, fma(load(l), set1(of.alpha[r - begin]), t0 + t1));
        if (INT) { // the values' factors go to the weights
            t0 = t0 * load(w.v_scale), t1 = t1 * load(w.v_scale + 16);
            if (!PLAIN) { // the factors of what is not seen may be anything
                t0 = select(within(seen, 0), t0, zero());
                t1 = select(within(seen, 16), t1, zero());
            }
            if (w.small_values) fold_max_bits(top, maxi(bits(abs(t0)), bits(abs(t1))));
            else fold_sum(top, abs(t0 + t1)); // without the sign that a NaN may have
        }
        store(s, t0), store(s + 16, t1);
    }
}

// The weights of a tile's rows to integers. Of a block of which a row sees nothing they are 0, and their
// factor -0: o = 1 o + -0 changes no bit.
template <bool PLAIN>
SIMD void round_tile_if(const Attend& w, int64_t block, Softening& of) {
    const int64_t begin = of.tile.begin;
    float inverse[kTileRows];
    weight_factors(rows_max_bits(of.top), w.most_weight, inverse, of.factor); // as integers NaN is the largest
    for (int64_t r = begin; r < of.tile.end; r++) {
        const Range seen = PLAIN ? Range{.from = 0, .to = kRescale} : seen_in(w, r, block);
        float* s = w.s + r * kRescale;
        if (seen.from < seen.to) {
            round_weights(s, inverse[r - begin]);
            continue;
        }
        __builtin_memset(s, 0, 2 * kRescale);
        of.alpha[r - begin] = 1.0f, of.factor[r - begin] = -0.0f;
    }
}

SIMD void find_tops(const AttentionArgs& a, const AttentionItem& item, const Attend& w, int64_t block, Softening& of) {
    of.plain = of.tile.whole && a.softcap == 0.0f && !a.slopes && !a.bias;
    if (of.plain) find_tops_if<true>(a, item, w, block, of);
    else find_tops_if<false>(a, item, w, block, of);
}
template <bool INT> SIMD void soften(const Attend& w, int64_t block, Softening& of) {
    if (of.plain) soften_if<true, INT>(w, block, of);
    else soften_if<false, INT>(w, block, of);
}
SIMD void round_tile(const Attend& w, int64_t block, Softening& of) {
    if (of.plain) round_tile_if<true>(w, block, of);
    else round_tile_if<false>(w, block, of);
}

template <bool INT>
__attribute__((noinline)) void soften_tiles(const AttentionArgs& a, const AttentionItem& item, const Attend& w,
                                            int64_t block, int64_t count) {
    Softening* of = w.of;
    for (int64_t i = 0; i < count; i++) find_tops(a, item, w, block, of[i]);
    for (int64_t i = 0; i < count; i++) raise_maxima(w, of[i]);
    for (int64_t i = 0; i < count; i++) soften<INT>(w, block, of[i]);
    for (int64_t i = 0; INT && i < count; i++) round_tile(w, block, of[i]);
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
    for (int64_t i = 0; i < dv; i += 16) { // 0 is added as merging a single split does: -0 becomes 0
        const F x = (load(total + i) + zero()) * set1(factor) / set1(l);
        if (dv - i >= 16) store(y + i, x);
        else store_n(y + i, x, dv - i);
    }
}
