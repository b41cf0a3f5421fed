// Blocks of integer pages in place, for few rows.

// Of integer pages, or of copies of them. All rows of a tile are weighed at once: what one does not see has
// the weight 0.
template <Asked ASKED, class E> struct Integers {
    enum { INT = 1 };
    const Attend& w;
    Halves<E> k, v;
    void scores(int64_t r, int64_t n) const {
        any_scores_int<ASKED>(n, query_int(w, r), k, pairs_of(w.d), w.q_factor + r, w.k_scale, w.s + r * kRescale);
    }
    void weigh(int64_t r, int64_t n, int, int to, const float* alpha, const float* factor) const {
        any_weigh_int<ASKED>(n, weights_int(w, r), v, w.dvp, to, alpha, factor, w.o + r * w.dvp);
    }
};

template <class E> SIMD void take_factors(const Places<E>& here, Attend& w) {
    for (int half = 0; half < 2; half++) {
        __builtin_memcpy(w.k_scale + 16 * half, here.k_scale[half], 64);
        __builtin_memcpy(w.v_scale + 16 * half, here.v_scale[half], 64);
    }
}

// Blocks of integer pages in place, for few rows: each step is taken for all of them before the next one. More of
// them would leave memory idle while weights are computed.
enum { kTogether = 2 };
typedef float Scores[2 * DIRECT_ROWS][kRescale]; // of a block, of two tiles at most
template <class E>
void attend_few(const AttentionArgs& a, const AttentionItem& item, int64_t begin, int64_t stop, int64_t end, Attend& w) {
    struct Block {
        alignas(64) Scores s;
        float k_scale[kRescale], v_scale[kRescale];
        Places<E> here, later;
    } blocks[kTogether];
    static_assert(2 * kTogether <= kTilesTogether, "a block has two tiles at most");
    int64_t count = 0, starts[kTilesTogether];
    Block* blocks_of[kTilesTogether];
    const Attend kept = w;
    const Tiles tiles = split_tiles(w.rows, w.most);
    const auto take = [&](Block& b) { w.s = b.s[0], w.k_scale = b.k_scale, w.v_scale = b.v_scale; };
    const auto each = [&](auto step) {
        for (int64_t i = 0; i < count; i++) {
            take(*blocks_of[i]);
            step(starts[i], w.of[i], *blocks_of[i]);
        }
    };
    const auto products = [&](const Block& b) {
        return Integers<FAR, E>{w, {b.here.k, 2 * a.kv.page_size, b.later.part[0], b.later.part[0]},
                                {b.here.v, 2 * a.kv.dv, b.later.part[1], b.later.part[0]}};
    };
    for (int64_t block = begin, i = 0; block < stop; block += kRescale, i++) {
        Block& b = blocks[i];
        find_halves(a, item, block, end, b.here);
        find_later(a, item, block, end, b.later);
        take(b);
        take_factors(b.here, w);
        ask_for_rest<FAR>(a, b.later.part[0], kRescale * w.d * (int64_t)sizeof(E));
        ask_for_rest<FAR>(a, b.later.part[1], kRescale * a.kv.dv * (int64_t)sizeof(E));
        for (int64_t t = 0; t < tiles.count; t++) {
            const Tile tile = tile_at(w, tiles, t, block);
            if (!tile.seen) continue;
            w.of[count].tile = tile, starts[count] = block, blocks_of[count++] = &b;
        }
    }
    each([&](int64_t, Softening& of, const Block& b) { products(b).scores(of.tile.begin, of.tile.end - of.tile.begin); });
    each([&](int64_t block, Softening& of, const Block&) { find_tops(a, item, w, block, of); });
    each([&](int64_t, Softening& of, const Block&) { raise_maxima(w, of); });
    each([&](int64_t block, Softening& of, const Block&) { soften<true>(w, block, of); });
    each([&](int64_t block, Softening& of, const Block&) { round_tile(w, block, of); });
    each([&](int64_t block, Softening& of, const Block& b) { weigh_tile(w, of, block, products(b)); });
    w = kept;
}

// Where the blocks from `begin` on end of which every row sees all, and nothing restrains its scores: so it is with all
// blocks but a sequence's last ones, in most models.
SIMD int64_t plain_end(const AttentionArgs& a, const Attend& w, int64_t begin, int64_t stop) {
    if (a.softcap != 0.0f || a.slopes || a.bias) return begin;
    for (int64_t r = 0; r < w.rows; r++) {
        if (((const int32_t*)w.low)[r] > begin) return begin;
        stop = lesser(stop, ((const int32_t*)w.high)[r]);
    }
    return stop / kRescale * kRescale;
}

// Scores to weights of the R rows of a tile, in n blocks: what attention_softmax.inl computes, in its order, but all of
// it in one function that knows how many rows there are.
template <int R, class E>
__attribute__((noinline)) void soften_plainly(Scores* scores, const Places<E>* here, int64_t n, int64_t first_row,
                                              float most_weight, float* m, float* l, Softening* of) {
    for (int64_t b = 0; b < n; b++)
        UNROLL for (int r = 0; r < R; r++) {
            const float* s = scores[b][first_row + r];
            fold_max(of[b].top + 4 * r, max(load(s), load(s + 16)));
        }
    F old = load8(m);
    for (int64_t b = 0; b < n; b++) {
        const F now = max(rows_max(of[b].top), old); // m where a score is NaN
        store8(of[b].alpha, select(less(old, now), exp2_negative(old - now), set1(1.0f)));
        store8(of[b].base, select(less(set1(-__builtin_inff()), now), now, zero()));
        old = now;
    }
    store8(m, old);
    for (int64_t b = 0; b < n; b++) {
        const F v0 = load(here[b].v_scale[0]), v1 = load(here[b].v_scale[1]);
        UNROLL for (int r = 0; r < R; r++) {
            float *s = scores[b][first_row + r], *top = of[b].top + 4 * r;
            const F base = set1(of[b].base[r]);
            F t0 = exp2_rounded(load(s) - base), t1 = exp2_rounded(load(s + 16) - base);
            store(l + 16 * r, fma(load(l + 16 * r), set1(of[b].alpha[r]), t0 + t1));
            t0 = t0 * v0, t1 = t1 * v1;
            if (sizeof(E) == 1) fold_max_bits(top, maxi(bits(abs(t0)), bits(abs(t1)))); // as soften_if: of int8 pages
            else fold_sum(top, abs(t0 + t1));                                            // no sum is near its bound
            store(s, t0), store(s + 16, t1);
        }
    }
    for (int64_t b = 0; b < n; b++) {
        float inverse[kTileRows];
        weight_factors(rows_max_bits(of[b].top), most_weight, inverse, of[b].factor);
        UNROLL for (int r = 0; r < R; r++) round_weights(scores[b][first_row + r], inverse[r]);
    }
}
template <class E>
void any_soften_plainly(int64_t rows, Scores* scores, const Places<E>* here, int64_t n, int64_t first_row,
                        float most_weight, float* m, float* l, Softening* of) {
    switch (rows) {
#define CASE(R) case R: return soften_plainly<R>(scores, here, n, first_row, most_weight, m, l, of);
    DIRECT_CASES
#undef CASE
    }
}

// What attend_few computes, of blocks [begin, stop) that are plain, kTogether at a time. Those asked for while some are
// computed are the next ones.
static_assert(int{kAhead} == int{kTogether} * int{kRescale}, "where blocks lie is found once");
template <Asked ASKED, class E>
void attend_plainly(const AttentionArgs& a, const AttentionItem& item, int64_t begin, int64_t stop, int64_t end, Attend& w) {
    alignas(64) Scores scores[kTogether];
    Places<E> places[2][kTogether];
    const Tiles tiles = split_tiles(w.rows, w.most);
    for (int64_t i = 0; i < kTogether; i++) find_halves(a, item, lesser(begin + i * kRescale, stop - kRescale), end, places[0][i]);
    for (int64_t n, turn = 0; begin < stop; begin += n * kRescale, turn ^= 1) {
        n = lesser(kTogether, (stop - begin) / kRescale);
        const Places<E>*here = places[turn], *later = places[turn ^ 1];
        const uint8_t* parts[2 * kTogether]; // of the next blocks: each step over a block asks for one of them
        for (int64_t i = 0; i < n; i++) {
            find_later(a, item, begin + i * kRescale, end, places[turn ^ 1][i]);
            for (int half = 0; half < 2; half++) parts[2 * i + half] = later[i].part[half];
        }
        for (int64_t i = 0; i < n; i++) {
            for (int half = 0; half < 2; half++) __builtin_memcpy(w.k_scale + 16 * half, here[i].k_scale[half], 64);
            const Halves<E> k{here[i].k, 2 * a.kv.page_size, parts[i], i ? parts[i - 1] : here[n - 1].part[1]};
            for (int64_t t = 0; t < tiles.count; t++) {
                const int64_t r = tile_start(tiles, t);
                any_scores_int<ASKED>(tile_size(tiles, t), query_int(w, r), k, pairs_of(w.d), w.q_factor + r, w.k_scale,
                                     scores[i][r]);
            }
            ask_for_rest<ASKED>(a, parts[i], kRescale * w.d * (int64_t)sizeof(E));
        }
        for (int64_t t = 0; t < tiles.count; t++) {
            const int64_t r = tile_start(tiles, t);
            any_soften_plainly(tile_size(tiles, t), scores, here, n, r, w.most_weight, w.m + kTileRows * t, w.l + 16 * r,
                               w.of + kTogether * t);
        }
        for (int64_t i = 0; i < n; i++) {
            const Halves<E> v{here[i].v, 2 * a.kv.dv, parts[n + i], parts[n + i - 1]};
            for (int64_t t = 0; t < tiles.count; t++) {
                const int64_t r = tile_start(tiles, t);
                const Softening& of = w.of[kTogether * t + i];
                any_weigh_int<ASKED>(tile_size(tiles, t), (const int16_t*)scores[i][r], v, w.dvp, kRescale, of.alpha,
                                    of.factor, w.o + r * w.dvp);
            }
            ask_for_rest<ASKED>(a, parts[n + i], kRescale * a.kv.dv * (int64_t)sizeof(E));
        }
    }
}
