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
#include "attention_int.inl"
#include "attention_int_pages.inl"
#include "attention_softmax.inl"
#include "attention_blocks.inl"
#include "attention_int_few.inl"
#include "attention_int_blocks.inl"

// A row of an item, the next of which comes without a division: each token has its heads one after the other.
struct QueryRow {
    int64_t token, head; // head: of the group that shares a KV head
    void next(int64_t group) {
        if (++head == group) head = 0, token++;
    }
};

// Queries scaled into panels, and what each row may see: [low, high). Other cores have written many of them.
enum { kQueriesAhead = 6 };
void load_queries(const AttentionArgs& a, const AttentionItem& item, Attend& w) {
    const auto query_of = [&](QueryRow row) { return a.q + (row.token * a.heads + item.head * w.group + row.head) * w.d; };
    const Tiles tiles = split_tiles(w.rows, w.most);
    const Bounds bounds = query_bounds(a.kv.type);
    const float factor = a.softcap != 0.0f ? a.scale : a.scale * kLog2e;
    QueryRow row{.token = item.t0, .head = 0}, ahead = row;
    for (int i = 0; i < kQueriesAhead; i++) ahead.next(w.group);
    for (int64_t t = 0; t < tiles.count; t++) {
        const int64_t first_row = tile_start(tiles, t), c = tile_size(tiles, t);
        for (int64_t i = 0; i < c; i++, row.next(w.group), ahead.next(w.group)) {
            const int64_t r = first_row + i;
            const float* q = query_of(row);
            if (r + kQueriesAhead < w.rows) // into the first-level cache: prefetch_bytes, which asks for the second, gains nothing
                for (int64_t j = 0; j < w.d; j += 16) prefetch(query_of(ahead) + j);
            float* panel = w.q + first_row * w.d + i;
            if (is_integer(a.kv.type))
                load_query_int(q, w.d, c, bounds, factor, query_int(w, first_row) + 2 * i, w.q_factor + r);
            else
                for (int64_t j = 0; j < w.d; j++) panel[j * c] = q[j] * factor;
            const int64_t position = a.positions[row.token], start = position - a.window + 1;
            ((int32_t*)w.high)[r] = a.causal ? (int32_t)(position + 1) : a.context_lens[item.sequence];
            ((int32_t*)w.low)[r] = (int32_t)(a.window && start > 0 ? start : 0);
        }
    }
}

void attend_any(const AttentionArgs& a, const AttentionItem& item, int64_t begin, int64_t stop, int64_t from, int64_t to,
                Attend& w) {
    switch (a.kv.type) {
    case KVType::F32: return attend_split<float>(a, item, begin, stop, from, to, w);
    case KVType::F16: return attend_split<F16Element>(a, item, begin, stop, from, to, w);
    case KVType::BF16: return attend_split<BF16Element>(a, item, begin, stop, from, to, w);
    case KVType::S8: return attend_split_int<int8_t>(a, item, begin, stop, from, to, w);
    case KVType::S16: return attend_split_int<int16_t>(a, item, begin, stop, from, to, w);
    }
}

// The blocks of a split that hold tokens of the step, where it is a tree: each token has its own ancestors there, so they
// are copied token by token. What the rows have of the blocks before these, which all tokens share, goes on from there.
void attend_tree(const AttentionArgs& a, const AttentionItem& item, int64_t begin, int64_t stop, Attend& w, const Tiles& tiles) {
    Attend own = w; // of one token; its queries, and what it sees, take the place of all others', which are done with
    own.rows = w.group, own.few = own.direct = false, own.most = ROWS, own.m = w.own_m;
    const Tiles its = split_tiles(own.rows, own.most);
    AttentionItem one = item;
    for (int64_t first = 0; first < w.rows; first += w.group) {
        one.t0 = item.t0 + first / w.group, one.t1 = one.t0 + 1;
        own.o = w.o + first * w.dvp, own.l = w.l + 16 * first;
        load_queries(a, one, own);
        const int64_t from = ((const int32_t*)own.low)[0], to = ((const int32_t*)own.high)[0];
        const int64_t here = from > begin ? from / kRescale * kRescale : begin;
        if (here >= lesser(stop, to)) continue;
        for (int64_t i = 0; i < kTileRows * its.count; i++) own.m[i] = -__builtin_inff();
        for (int64_t r = 0; r < own.rows; r++) *maximum_of(own, its, r) = *maximum_of(w, tiles, first + r);
        attend_any(a, one, here, lesser(stop, to), from, to, own);
        for (int64_t r = 0; r < own.rows; r++) *maximum_of(w, tiles, first + r) = *maximum_of(own, its, r);
    }
}

void attention(const AttentionArgs& a, const AttentionItem& item, float* scratch) {
    const int64_t group = a.heads / a.kv.heads, rows = (item.t1 - item.t0) * group;
    Attend w = layout_scratch(scratch, rows, group, a.kv.d, a.kv.dv);
    const bool whole = a.kv.page_size % 16 == 0 && a.kv.dv % 16 == 0 && !a.kv.latent;
    w.few = w.direct = rows <= 2 * DIRECT_ROWS && whole;
    if (is_integer(a.kv.type)) {
        w.few = w.direct = w.direct && a.kv.d % 2 == 0;
        if (a.kv.type == KVType::S16) w.direct = whole && a.kv.d % 2 == 0;
    }
    w.most = w.few ? DIRECT_ROWS : ROWS;
    w.small_values = a.kv.type == KVType::S8;
    w.most_weight = a.kv.latent && !w.small_values ? 16376.0f : 32760.0f;
    const Tiles tiles = split_tiles(rows, w.most);
    Softening of[kTilesTogether];
    const bool tree = item.tree != INT64_MAX;
    for (int64_t i = 0, n = w.few && !tree ? kTogether * tiles.count : (int64_t)kTilesTogether; i < n; i++)
        of[i] = {}; // tiles have less than 8 rows: what the others hold is a number
    w.of = of;
    load_queries(a, item, w);
    int64_t from = INT32_MAX, to = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (((int32_t*)w.low)[r] < from) from = ((int32_t*)w.low)[r];
        if (((int32_t*)w.high)[r] > to) to = ((int32_t*)w.high)[r];
        w.total_m[r] = -__builtin_inff();
        w.total_l[r] = 0.0f;
    }
    if (w.dv != w.dvp) __builtin_memset(w.v, 0, kRescale * w.dvp * 4);
    const auto head_of_row = [&](int64_t r) { return item.head * group + r % group; };
    const auto sink_of = [&](int64_t r) { return a.sinks ? a.sinks + head_of_row(r) : nullptr; };
    const auto y_of = [&](int64_t r) { return a.y + ((item.t0 + r / group) * a.heads + head_of_row(r)) * w.dv; };
    const bool alone = !item.partial && item.c1 == item.c0 + 1; // then what it finds is the total
    if (!alone) __builtin_memset(w.total, 0, rows * w.dvp * 4);
    for (int64_t split = item.c0; split < item.c1; split++) {
        __builtin_memset(w.o, 0, rows * w.dvp * 4);
        __builtin_memset(w.l, 0, rows * 64);
        for (int64_t i = 0; i < kTileRows * tiles.count; i++) w.m[i] = -__builtin_inff();
        const int64_t begin = split * kSplit, stop = lesser(begin + kSplit, to);
        const int64_t shared = tree ? lesser(item.tree / kRescale * kRescale, stop) : stop;
        attend_any(a, item, from > begin ? from / kRescale * kRescale : begin, shared, from, to, w);
        if (shared < stop) attend_tree(a, item, shared > begin ? shared : begin, stop, w, tiles);
        for (int64_t r = 0; r < rows; r++) {
            const float l = rsum(load(w.l + 16 * r)), m = *maximum_of(w, tiles, r);
            if (item.partial) {
                float* p = item.partial + (r * item.splits + split - item.first_split) * (w.dvp + 16);
                __builtin_memcpy(p, w.o + r * w.dvp, w.dvp * 4);
                p[w.dvp] = m;
                p[w.dvp + 1] = l;
            } else if (alone)
                write_row(w.o + r * w.dvp, m, l, sink_of(r), w.dv, y_of(r));
            else
                merge_row(w.total + r * w.dvp, w.total_m + r, w.total_l + r, w.o + r * w.dvp, m, l, w.dvp);
        }
    }
    for (int64_t r = 0; r < rows && !item.partial && !alone; r++)
        write_row(w.total + r * w.dvp, w.total_m[r], w.total_l[r], sink_of(r), w.dv, y_of(r));
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
