// Blocks of positions, tile by tile of the rows that share them.

// How a block's products are computed: from widened copies in scratch, or from the pages.
struct Widened {
    enum { INT = 0 };
    const Attend& w;
    void scores(int64_t r, int64_t n) const { any_scores(n, w.q + r * w.d, w.k, w.d, w.s + r * kRescale); }
    void weigh(int64_t r, int64_t n, int from, int to, const float* alpha, const float*) const {
        any_weigh(n, w.s + r * kRescale, w.v, w.dvp, from, to, alpha, w.o + r * w.dvp);
    }
};
template <Asked ASKED, class T> struct Direct {
    enum { INT = 0 };
    const Attend& w;
    Halves<T> k, v;
    void scores(int64_t r, int64_t n) const { any_scores_direct<ASKED>(n, w.q + r * w.d, k, w.d, w.s + r * kRescale); }
    void weigh(int64_t r, int64_t n, int from, int to, const float* alpha, const float*) const {
        any_weigh_direct<ASKED>(n, w.s + r * kRescale, v, w.dvp, from, to, alpha, w.o + r * w.dvp);
    }
};
SIMD Tile tile_at(const Attend& w, const Tiles& tiles, int64_t t, int64_t block) {
    const auto *low = (const int32_t*)w.low, *high = (const int32_t*)w.high;
    Tile tile{t, tile_start(tiles, t), tile_start(tiles, t) + tile_size(tiles, t), false, true};
    for (int64_t r = tile.begin; r < tile.end; r++) {
        tile.seen |= high[r] > block && low[r] < block + kRescale;
        tile.whole &= high[r] >= block + kRescale && low[r] <= block;
    }
    return tile;
}

template <class Products>
SIMD void weigh_tile(const Attend& w, const Softening& of, int64_t block, const Products& products) {
    const Tile& t = of.tile;
    const auto *low = (const int32_t*)w.low, *high = (const int32_t*)w.high;
    if (Products::INT || t.whole) {
        int64_t to = t.whole ? kRescale : 0;
        for (int64_t r = t.begin; r < t.end && to < kRescale; r++) to = high[r] - block > to ? high[r] - block : to;
        return products.weigh(t.begin, t.end - t.begin, 0, (int)(to < kRescale ? to : (int64_t)kRescale),
                              of.alpha, of.factor);
    }
    for (int64_t r = t.begin, next; r < t.end; r = next) { // rows that see the same positions together
        for (next = r + 1; next < t.end && low[next] == low[r] && high[next] == high[r];) next++;
        const Range seen = seen_in(w, r, block);
        if (seen.from < seen.to) products.weigh(r, next - r, seen.from, seen.to, of.alpha + r - t.begin, nullptr);
    }
}

template <class Products>
void attend_block(const AttentionArgs& a, const AttentionItem& item, int64_t block, Attend& w, const Products& products) {
    const Tiles tiles = split_tiles(w.rows, w.most);
    for (int64_t t = 0; t < tiles.count;) {
        int64_t count = 0;
        for (; t < tiles.count && count < kTilesTogether; t++) {
            const Tile tile = tile_at(w, tiles, t, block);
            if (!tile.seen) continue;
            products.scores(tile.begin, tile.end - tile.begin);
            w.of[count++].tile = tile;
        }
        soften_tiles<Products::INT>(a, item, w, block, count);
        for (int64_t i = 0; i < count; i++) weigh_tile(w, w.of[i], block, products);
    }
}

template <Asked ASKED, class T>
void attend_directly(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end, const uint8_t*& asked, Attend& w) {
    Places<T> here, later;
    find_halves(a, item, block, end, here);
    find_later(a, item, block, end, later);
    const Halves<T> k{here.k, a.kv.page_size, later.part[0], asked ? asked : later.part[0]}, v{here.v, a.kv.dv, later.part[1], later.part[0]};
    attend_block(a, item, block, w, Direct<ASKED, T>{w, k, v});
    asked = later.part[1];
}

// Blocks [begin, stop) of one split, of whose positions [from, to) are seen by some row.
template <class T>
void attend_split(const AttentionArgs& a, const AttentionItem& item, int64_t begin, int64_t stop, int64_t from,
                  int64_t to, Attend& w) {
    const uint8_t* asked = nullptr; // the last part of a page
    for (int64_t block = begin; block < stop; block += kRescale) {
        const int64_t after = block + kRescale;
        if (w.direct && after <= item.tree) {
            (a.near ? attend_directly<NEAR, T> : attend_directly<FAR, T>)(a, item, block, to, asked, w);
            continue;
        }
        load_block<T>(a, item, block, block > from ? block : from, after < to ? after : to, w);
        if (after < to) prefetch_positions<T>(a, item, after, to);
        attend_block(a, item, block, w, Widened{w});
    }
}
