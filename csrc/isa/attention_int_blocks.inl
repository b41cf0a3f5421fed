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
    void weigh(int64_t r, int64_t n, int, int to, const float* alpha, const float* factor) const {
        any_weigh_int<AHEAD>(n, weights_int(w, r), v, w.dvp, to, alpha, factor, w.o + r * w.dvp);
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
template <class E>
void attend_few(const AttentionArgs& a, const AttentionItem& item, int64_t begin, int64_t stop, int64_t end, Attend& w) {
    struct Block {
        alignas(64) float s[2 * DIRECT_ROWS][kRescale];
        float k_scale[kRescale], v_scale[kRescale];
        Places<E> here, soon, later;
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
        return Integers<true, E>{w, {b.here.k, b.later.k, 2 * a.kv.page_size, b.soon.k},
                                 {b.here.v, b.later.v, 2 * a.kv.dv, b.soon.v}};
    };
    for (int64_t block = begin, i = 0; block < stop; block += kRescale, i++) {
        Block& b = blocks[i];
        find_halves(a, item, block, end, b.here);
        find_later(a, item, block, end, kIntegersSoon, b.soon);
        find_later(a, item, block, end, kIntegersAhead, b.later);
        take(b);
        take_factors(b.here, w);
        for (int half = 0; half < 2; half++) prefetch(b.later.k_scale[half]), prefetch(b.later.v_scale[half]);
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
            next = lesser(begin + (int64_t)kTogether * kRescale, in_place);
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
