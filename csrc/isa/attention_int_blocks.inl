// Blocks of integer pages.

// Of integer pages, or of copies of them. All rows of a tile are weighed at once: what one does not see has
// the weight 0.
template <bool AHEAD, class E> struct Integers {
    enum { INT = 1 };
    const Attend& w;
    Halves<E> k, v;
    void scores(int64_t r, int64_t n) const {
        any_scores_int<AHEAD>(n, query_int(w, r), k, pairs_of(w.d), w.q_factor + r, w.k_scale, w.s + r * kRescale);
    }
    void weigh(int64_t r, int64_t n, int, int to) const {
        any_weigh_int<AHEAD>(n, weights_int(w, r), v, w.dvp, to, w.alpha + r, w.p_factor + r, w.o + r * w.dvp);
    }
};

template <class E> SIMD void take_factors(const Places<E>& here, Attend& w) {
    for (int half = 0; half < 2; half++) {
        __builtin_memcpy(w.k_scale + 16 * half, here.k_scale[half], 64);
        __builtin_memcpy(w.v_scale + 16 * half, here.v_scale[half], 64);
    }
}

// Blocks of integer pages in place, for few rows: as above, the scores of both before the first weights. More
// of them would leave memory idle while weights are computed.
enum { kTogether = 2 };
template <class E>
void attend_few(const AttentionArgs& a, const AttentionItem& item, int64_t begin, int64_t stop, int64_t end, Attend& w) {
    enum { BLOCKS = kTogether, MOST = 2 * DIRECT_ROWS };
    float s[BLOCKS][MOST][kRescale], scales[BLOCKS][2][kRescale], alpha[BLOCKS][MOST + 16], factor[BLOCKS][MOST + 16];
    Places<E> here[BLOCKS], later[BLOCKS];
    const Tiles tiles = split_tiles(w.rows, w.most);
    const auto each = [&](auto use) {
        for (int64_t block = begin, i = 0; block < stop; block += kRescale, i++) {
            w.s = s[i][0], w.k_scale = scales[i][0], w.v_scale = scales[i][1], w.alpha = alpha[i], w.p_factor = factor[i];
            const Integers<true, E> products{w, {here[i].k, later[i].k, 2 * a.kv.page_size},
                                             {here[i].v, later[i].v, 2 * a.kv.dv}};
            for (int64_t t = 0; t < tiles.count; t++) {
                const Tile tile = tile_at(w, tiles, t, block);
                if (tile.seen) use(block, tile, products);
            }
        }
    };
    const Attend kept = w;
    for (int64_t block = begin, i = 0; block < stop; block += kRescale, i++) {
        find_halves(a, item, block, end, here[i]);
        find_later(a, item, block, end, later[i]);
        w.k_scale = scales[i][0], w.v_scale = scales[i][1];
        take_factors(here[i], w);
        for (int half = 0; half < 2; half++) prefetch(later[i].k_scale[half]), prefetch(later[i].v_scale[half]);
    }
    each([](int64_t, const Tile& t, const auto& products) { products.scores(t.begin, t.end - t.begin); });
    each([&](int64_t block, const Tile& t, const auto&) { soften_tile<true>(a, item, w, t, block); });
    each([&](int64_t block, const Tile& t, const auto& products) { weigh_tile(w, t, block, products); });
    w = kept;
}

// A block of integer pages in place, for many rows.
template <class E>
void attend_many(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end, Attend& w) {
    Places<E> here;
    find_halves(a, item, block, end, here);
    take_factors(here, w);
    if (block + kRescale < end) prefetch_positions<E>(a, item, block + kRescale, end);
    attend_block(a, item, block, w, Integers<false, E>{w, {here.k, here.k, 2 * a.kv.page_size}, {here.v, here.v, 2 * a.kv.dv}});
}

// Integer pages copied first.
void attend_copied(const AttentionArgs& a, const AttentionItem& item, int64_t block, Attend& w) {
    const auto *keys = (const int16_t*)w.k, *values = (const int16_t*)w.v;
    const int16_t* k[2] = {keys, keys + kRescale};
    const int16_t* v[2] = {values, values + kRescale / 2 * w.dvp};
    attend_block(a, item, block, w, Integers<false, int16_t>{w, {k, k, 2 * kRescale}, {v, v, 2 * w.dvp}});
}

// Blocks [begin, stop) of one split, of whose positions [from, to) are seen by some row.
template <class E>
void attend_split_int(const AttentionArgs& a, const AttentionItem& item, int64_t begin, int64_t stop, int64_t from,
                      int64_t to, Attend& w) {
    if (w.few) {
        const int64_t in_place = item.tree < stop ? item.tree / kRescale * kRescale : stop;
        for (int64_t next; begin < in_place; begin = next) {
            next = begin + kTogether * kRescale < in_place ? begin + kTogether * kRescale : in_place;
            attend_few<E>(a, item, begin, next, to, w);
        }
    }
    for (int64_t block = begin; block < stop; block += kRescale) {
        const int64_t after = block + kRescale;
        if (sizeof(E) == 2 && w.direct && after <= item.tree) {
            attend_many<int16_t>(a, item, block, to, w);
            continue;
        }
        load_block_int<E>(a, item, block, block > from ? block : from, after < to ? after : to, w);
        if (after < to) prefetch_positions<E>(a, item, after, to);
        attend_copied(a, item, block, w);
    }
}
