// Upper bounds of logits from five of a weight's eight bits (S8Cut): what cannot be the largest need not be computed.
//
// A number v is 8 (h - 15.5) + e with -4 <= e <= 3, h its high bits. So a row's product with x is 8 times that of h - 15.5,
// and what is left is the product of e with x. Of that the part along one direction, which all x of a model have much of, is
// known: c (e d) of x = c d + x'. And e x' is at most |e sqrt(u)| |x' / sqrt(u)| for any u > 0 (Cauchy and Schwarz), least
// where u is what |x'| usually is: a few elements of a model's last norm are far larger than the rest. Of SmolLM2's 3,072
// panels 35 may then hold the largest logit and are computed. With u alone there would be 75, without c and u 800.

// Where a block's sums start: -15.5 times the sum of q, in int32, or in U4's two int16 lanes by themselves. Each lane then
// ends at the 16 products of its own (h - 15.5) q, at most 31,496, wherever it has been meanwhile.
SIMD int32_t screen_start(int32_t even, int32_t odd) {
#if INTEGER_SCALES
    return (int32_t)((uint32_t)(uint16_t)(-31 * even >> 1) | (uint32_t)(-31 * odd >> 1) << 16);
#else
    return -31 * (even + odd) >> 1;
#endif
}

constexpr float kShare = 0.02f; // of x's norm, which bounds take for what is small beside the low bits

void screen_row(const int8_t* q, const float* d, const ScreenBounds& of, int64_t k, int64_t stride, int32_t* start, float* part, float* norm) {
    double along = 0.0;
    for (int64_t b = 0; b < k / kBlock; b++) {
        const int8_t* at = q + b * kBlock;
        const float* direction = of.direction + b * kBlock;
        int32_t sum[4] = {};
        float product[4] = {};
        for (int i = 0; i < kBlock; i += 4)
            for (int j = 0; j < 4; j++) sum[j] += at[i + j], product[j] += (float)at[i + j] * direction[i + j];
        start[b * stride] = screen_start(sum[0] + sum[1], sum[2] + sum[3]);
        along += (double)(product[0] + product[1] + product[2] + product[3]) * d[b];
    }
    const float c = *part = (float)along;
    double whole = 0.0, rest = 0.0;
    for (int64_t b = 0; b < k / kBlock; b++) {
        float all[4] = {}, left[4] = {};
        for (int i = 0; i < kBlock; i += 4)
            for (int j = 0; j < 4; j++) {
                const int64_t at = b * kBlock + i + j;
                const float x = (float)q[at] * d[b], y = x - c * of.direction[at];
                all[j] += x * x / of.usual[at], left[j] += y * y / of.usual[at];
            }
        whole += all[0] + all[1] + all[2] + all[3];
        rest += left[0] + left[1] + left[2] + left[3];
    }
    const double rounding = 1e-4 * (c < 0 ? -c : c) * of.direction_norm; // of x', and of what is known along the direction
    *norm = (float)((__builtin_sqrt(rest) + __builtin_sqrt(whole) * kShare + rounding) * (1 + 1e-4));
}

struct RowSums { // of 16 rows: weighed squares of what the low bits leave, and of the numbers; the former's product with the direction
    float low[kPanel], whole[kPanel], along[kPanel];
};
SIMD void add_squares(const int32_t* quads, const float* usual, const float* direction, RowSums& sums) {
    for (int i = 0; i < kBlock; i++) {
        const int32_t* quad = quads + i / 4 * kPanel;
        for (int row = 0; row < kPanel; row++) {
            const int32_t v = (int32_t)(((uint32_t)quad[row] << (24 - i % 4 * 8)) ^ (SHIFTED_S8 ? 0x80000000u : 0)) >> 24, e = (v & 7) - 4;
            sums.low[row] += (float)(e * e) * usual[i];
            sums.whole[row] += (float)(v * v) * usual[i];
            sums.along[row] += (float)e * direction[i];
        }
    }
}

// Beside the low bits count: where sums start, rounded by at most 1 a block, whose factor is at most |x| / 127 of its largest
// element; and the roundings, one a block and a few, of f32 sums on both sides.
__attribute__((noinline)) void panel_bounds(const uint8_t* panel, const ScreenBounds& to, int64_t blocks, int64_t p) {
    RowSums all = {};
    float starts[kPanel] = {}, size = 0.0f;
    for (int64_t b = 0; b < blocks; b++, panel += kJoinedBytes) {
        const float *usual = to.usual + b * kBlock, *scales = (const float*)(panel + 512);
        RowSums sums = {};
        add_squares((const int32_t*)panel, usual, to.direction + b * kBlock, sums);
        float top = 0.0f;
        for (int i = 0; i < kBlock; i++) top = usual[i] > top ? usual[i] : top;
        for (int row = 0; row < kPanel; row++) {
            const float square = scales[row] * scales[row];
            all.low[row] += sums.low[row] * square;
            all.whole[row] += sums.whole[row] * square;
            all.along[row] += sums.along[row] * scales[row];
            starts[row] += top * square;
        }
    }
    const float share = (float)(4 * (blocks + 8)) * 0x1p-24f;
    for (int row = 0; row < kPanel; row++) {
        const float low = __builtin_sqrtf(all.low[row]), start = 8.0f / 127 * __builtin_sqrtf(starts[row]), whole = __builtin_sqrtf(all.whole[row]);
        // The low bits meet x', the others x: as norms hold a share of x, errors do of what that is for.
        const float others = start + share * (2 * whole + low + start), both = low + others;
        to.errors[p * kPanel + row] = (both >= others / kShare ? both : others / kShare) * 0.125f * (1 + 1e-4f);
        to.along[p * kPanel + row] = all.along[row] * 0.125f;
        size = whole <= size || size != size ? size : whole; // a NaN stays
    }
    to.sizes[p] = size;
}

void screen_bounds(const Matrix& w, const ScreenBounds& to, int64_t begin, int64_t end, uint8_t* scratch) {
    for (int64_t p = begin; p < end; p++) {
        join_panel<false>(w, p, scratch);
        panel_bounds(scratch, to, w.k / kBlock, p);
    }
}

// Of so many tokens the sums leave no registers to take high bits apart for each of them.
constexpr int64_t kManyTokens = 6;

// An eighth of the products of h - 15.5: of a panel of U5 with another start, or of what is left apart where it pays.
template <int C> SIMD void screen_products(const Matrix& high, int64_t p, const uint8_t* panel, const Activations& a, int64_t start, Ahead ahead,
                                            [[maybe_unused]] Kept kept, float* out) {
    const int64_t blocks = high.k / kBlock;
    const int8_t* q = a.q + start * high.k;
    const float* d = a.d + start * blocks;
    const int32_t* sum = a.sum + start * blocks;
#ifdef EXPANDED_U4
    const float* units = units_of(high, p);
    const uint8_t* fifth = high.fifth + p * blocks * kFifthBytes;
    if (!units) panels_of<C, 1, EXPANDED_U4, kSingle, kNoMinima>(high, 1, panel, q, d, d, sum, ahead, out);
    else if (kept.token >= 0) dot_panel_in_units<C, EXPANDED_U4, kNoMinima, true>(panel, units, q, d, d, sum, blocks, 1, ahead, out, nullptr, kept);
    else if (panel) dot_panel_in_units<C, EXPANDED_U4, kNoMinima>(panel, units, q, d, d, sum, blocks, 1, ahead, out);
    else if constexpr (C < kManyTokens) dot_panel_in_units<C, U5Lanes, kNoMinima>(high.data + p * high.panel_bytes, units, q, d, d, sum, blocks, 1, ahead, out, fifth);
#else
    (void)p;
    if (high.wide) panels_of<C, 1, U5, kSingle, kNoMinima>(high, 1, panel, q, d, d, sum, ahead, out);
    else panels_of<C, 1, U5, kHalf, kNoMinima>(high, 1, panel, q, d, d, sum, ahead, out);
#endif
}

// The rows of a panel, one of which may be the largest.
__attribute__((noinline)) void note_rows(const ScreenArgs& a, int64_t p, int64_t m, const float* out) {
    const F product = fma(load(a.along + p * kPanel), set1(a.parts[m]), load(out)), error = load(a.errors + p * kPanel) * set1(a.norms[m]);
    const int64_t n = a.w.n - p * kPanel;
    float* rows = a.rows + m * a.w.n + p * kPanel;
    if (n >= kPanel) store(rows, product + error);
    else store_n(rows, product + error, n);
    const float certain = rmax(product - error);
    if (certain > a.least[m]) a.least[m] = certain;
}

template <int C> void screen_tile(const ScreenArgs& a, const Matrix& high, int64_t p, const uint8_t* panel, int64_t start, Ahead ahead, Kept kept) {
    alignas(64) float out[C * 16];
    screen_products<C>(high, p, panel, a.a, start, ahead, kept, out);
    const F errors = load(a.errors + p * kPanel), along = load(a.along + p * kPanel);
    alignas(64) float folded[8][4] = {}, tops[8]; // 8 tokens' largest of 4 lanes each
    UNROLL for (int m = 0; m < C; m++)
        fold_max(folded[m], fma(errors, set1(a.norms[start + m]), fma(along, set1(a.parts[start + m]), load(out + m * 16))));
    store8(tops, rows_max(folded[0]));
    for (int m = 0; m < C; m++) {
        a.upper[(start + m) * high.panels + p] = tops[m];
        if (__builtin_expect(tops[m] >= a.least[start + m], 0)) note_rows(a, p, start + m, out + m * 16);
    }
}

void any_screen_tile(const ScreenArgs& a, const Matrix& high, int64_t p, const uint8_t* panel, int64_t start, int64_t c, Ahead ahead, Kept kept) {
    switch (c) {
#define CASE(C) case C: return screen_tile<C>(a, high, p, panel, start, ahead, kept);
    CASE(1) CASE(2) CASE(3) CASE(4)
#if LARGEST_TILE_INT8 > 4
    CASE(5) CASE(6)
#endif
#undef CASE
    }
}

// A panel of high bits as the tiles read it, or null: as it is.
SIMD const uint8_t* high_panel(const Matrix& w, int64_t p, [[maybe_unused]] bool many, uint8_t* scratch) {
#ifdef EXPANDED_U4
    const float* units = units_of(w, p);
    if (units && !many) return nullptr;
    if (units) expand_high_bits<true>(w, p, units, scratch);
    else expand_high_bits<false>(w, p, units, scratch);
#else
    join_high_bits(w, p, scratch);
#endif
    return scratch;
}

// The logits of those rows of which all are wanted, while the panel's high bits are at hand. kept: of the first one's tile.
SIMD void whole_rows([[maybe_unused]] const ScreenArgs& a, [[maybe_unused]] int64_t p, [[maybe_unused]] const uint8_t* panel,
                     [[maybe_unused]] const Kept& kept) {
#ifdef EXPANDED_U4
    const Matrix& w = a.w;
    const int64_t blocks = w.k / kBlock, n = w.n - p * kPanel;
    for (int64_t i = 0; i < a.wholes; i++) {
        const WholeRow& row = a.whole[i];
        alignas(32) float out[kPanel];
        const float* units = units_of(w, p);
        const uint8_t* low = w.low + p * blocks * kLowBytes;
        if (units && !i && kept.token >= 0) dot_cut_panel<true, true>(panel, low, units, row.q, row.d, row.sum, blocks, out, kept);
        else if (units) dot_cut_panel<true, false>(panel, low, units, row.q, row.d, row.sum, blocks, out);
        else dot_cut_panel<false, false>(panel, low, nullptr, row.q, row.d, row.sum, blocks, out);
        if (n >= kPanel) store(row.y + p * kPanel, load(out));
        else store_n(row.y + p * kPanel, load(out), n);
    }
#endif
}

// What the first of those rows has its tile leave, if that is of the sweep that begins with tile `first`.
SIMD Kept kept_of(const ScreenArgs& a, int64_t first) {
    const Tiles& tiles = a.a.tiles;
    const int64_t row = a.whole[0].row, tile = tile_of(tiles, row), start = tile_start(tiles, tile), blocks = a.w.k / kBlock;
    if (tile < first) return {};
    return {.token = row - start, .to = a.scratch + blocks * kJoinedBytes, .starts = a.a.sum + start * blocks + row - start, .stride = tile_size(tiles, tile)};
}

void screen(const ScreenArgs& a, int64_t begin, int64_t end) {
    const Matrix& w = a.w;
    Matrix high = w;
    high.layout = Layout::U5;
    const Tiles& tiles = a.a.tiles;
    const int64_t chunk = tiles_in_sweep(w, a.a), bits = w.k / kBlock * kFifthBytes, rest = w.k / kBlock * kLowBytes;
    const int64_t later = a.upcoming ? (a.upcoming - w.data) / w.panel_bytes : -1;
    for (int64_t first = 0; first < tiles.count; first += chunk) {
        const int64_t last = first + chunk < tiles.count ? first + chunk : tiles.count;
        const bool whole = a.wholes && last == tiles.count, many = whole || tile_start(tiles, last) - tile_start(tiles, first) >= kManyTokens;
        const Kept kept = whole ? kept_of(a, first) : Kept{};
        const int64_t keeping = kept.token >= 0 ? tile_of(tiles, a.whole[0].row) : -1, each = whole ? rest / (last - first) : 0;
        for (int64_t p = begin; p < end; p++) {
            const bool next = p + 1 < end;
            const uint8_t* panel = high_panel(w, p, many, a.scratch);
            const Following follow = following(w, a.a, p, 1, next, last - first, a.upcoming);
            if (next) prefetch_bytes(w.fifth + (p + 1) * bits, bits);
            const int64_t after = next ? p + 1 : later;
            for (int64_t t = first; t < last; t++) {
                for (int64_t i = 0; after >= 0 && i < each; i += 64) __builtin_prefetch(w.low + after * rest + (t - first) * each + i, 0, 2);
                any_screen_tile(a, high, p, panel, tile_start(tiles, t), tile_size(tiles, t), follow.of_tile(t - first), t == keeping ? kept : Kept{});
            }
            if (whole) whole_rows(a, p, panel, kept); // last, as their bounds were noted where these go
        }
    }
}
