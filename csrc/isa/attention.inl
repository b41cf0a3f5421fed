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

#include "attention_pages.inl"
#include "attention_tiles.inl"
#include "attention_softmax.inl"

// How a block's products are computed: from widened copies in scratch, or from the pages.
struct Widened {
    const Attend& w;
    void scores(int64_t r, int64_t n) const { any_scores(n, w.q + r * w.d, w.k, w.d, w.s + r * kRescale); }
    void weigh(int64_t r, int64_t n, int from, int to) const {
        any_weigh(n, w.s + r * kRescale, w.v, w.dvp, from, to, w.alpha + r, w.o + r * w.dvp);
    }
};
template <class T> struct Direct {
    const Attend& w;
    Halves<T> k, v;
    void scores(int64_t r, int64_t n) const { any_scores_direct(n, w.q + r * w.d, k, w.d, w.s + r * kRescale); }
    void weigh(int64_t r, int64_t n, int from, int to) const {
        any_weigh_direct(n, w.s + r * kRescale, v, w.dvp, from, to, w.alpha + r, w.o + r * w.dvp);
    }
};

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
        products.scores(first_row, c);
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
            if (seen.from < seen.to) products.weigh(r, next - r, seen.from, seen.to);
        }
    }
}

template <class T>
void attend_directly(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end, Attend& w) {
    Places<T> here, later;
    find_halves(a, item, block, end, here);
    find_later(a, item, block, end, later);
    for (int half = 0; half < 2 && a.kv.type == KVType::S8; half++) {
        __builtin_memcpy(w.k_scale + 16 * half, here.k_scale[half], 64);
        __builtin_memcpy(w.v_scale + 16 * half, here.v_scale[half], 64);
        prefetch(later.k_scale[half]), prefetch(later.v_scale[half]);
    }
    attend_block(a, item, block, w, Direct<T>{w, {here.k, later.k, a.kv.page_size}, {here.v, later.v, a.kv.dv}});
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
    const int64_t after = block + kRescale;
    if (w.direct && after <= item.tree) return attend_directly<T>(a, item, block, to, w);
    load_block<T>(a, item, block, block > from ? block : from, after < to ? after : to, w);
    if (after < to) prefetch_positions<T>(a, item, after, to);
    attend_block(a, item, block, w, Widened{w});
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
