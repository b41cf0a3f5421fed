// What one item of attention works on: its scratch, and blocks of K and V read from the pages.

int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// The rows of one tile, and whether one of them sees a block, or all of it all.
struct Tile {
    int64_t index, begin, end;
    bool seen, whole;
};

enum { kTileRows = 8 }; // at most
static_assert(ROWS <= kTileRows && DIRECT_ROWS <= kTileRows, "see Softening");

// What the rows of a tile go through together: one reduction over lanes for all of them.
//
// From scores to weights is a long chain: largest score, maximum so far, exponentials, largest weight, factor,
// integers. So every step of it is taken for many tiles, or blocks, before the next one.
struct alignas(64) Softening {
    Tile tile;
    bool plain;                   // nothing restrains the tile's scores
    float top[kTileRows * 4];     // of each row its scores folded to four lanes, then its weights
    float base[kTileRows];        // of each row m, or 0 where that is -inf
    float alpha[kTileRows];       // of each row: what o and l were is this much of what they will be
    float factor[kTileRows];      // of each row of integer weights
};
enum { kTilesTogether = 8 };

// Scratch of one item; every array is 64-byte aligned.
struct Attend {
    int64_t rows, group, d, dv, dvp;
    bool few;     // rows: what is read for them is asked for as it will be needed
    bool direct;  // blocks are read from the pages, not copied first
    int64_t most; // rows of a tile
    bool small_values; // of int8 pages: no sum is near its bound
    float most_weight; // round_weights
    float* q;     // panels [d][rows of the tile], scaled; of integer pages 16-bit, as are s, k and v
    float* s;     // [rows][32] scores, then weights
    float* o;     // [rows][dvp] of the current split
    float* total; // [rows][dvp] of the splits before
    float* k;     // [d][32]
    float* v;     // [32][dvp]
    float* l;                                     // [rows][16] sums by lane of the current split
    float* m;                                     // [tiles][8]
    float* own_m;                                 // the same of one token of a tree
    float *total_m, *total_l;                     // [rows]
    float* q_factor;                              // [rows] of integer pages' q
    float *k_scale, *v_scale, *low, *high;        // [32] integer pages' factors; [rows] visible range (as int32)
    Softening* of;                                // [kTilesTogether]
};

int64_t attention_scratch(int64_t rows, int64_t d, int64_t dv) {
    const int64_t dvp = padded(dv), r = padded(rows);
    return (r * d + r * kRescale + 2 * r * dvp + d * kRescale + kRescale * dvp + 26 * r + 32 + 2 * kRescale + 64) * 4;
}

Attend layout_scratch(float* at, int64_t rows, int64_t group, int64_t d, int64_t dv) {
    const int64_t dvp = padded(dv), r = padded(rows);
    Attend w;
    w.rows = rows, w.group = group, w.d = d, w.dv = dv, w.dvp = dvp;
    w.q = at, at += r * d;
    w.s = at, at += r * kRescale;
    w.o = at, at += r * dvp;
    w.total = at, at += r * dvp;
    w.k = at, at += d * kRescale;
    w.v = at, at += kRescale * dvp;
    w.m = at, at += 2 * r;
    w.own_m = at, at += 2 * r;
    w.l = at, at += 16 * r;
    w.total_m = at, at += r;
    w.total_l = at, at += r;
    w.q_factor = at, at += r;
    w.low = at, at += r;
    w.high = at, at += r;
    w.k_scale = at, at += kRescale;
    w.v_scale = at;
    return w;
}

// Rows of n numbers of a page, `stride` apart, to f32 rows `width` apart.
template <class T> void widen_rows(const T* from, int64_t stride, int64_t rows, int64_t n, float* to, int64_t width) {
    for (int64_t r = 0; r < rows; r++, from += stride, to += width) {
        int64_t i = 0;
        for (; i + 16 <= n; i += 16)
            UNROLL for (int j = 0; j < 16; j += VW) vstore(to + i + j, vload_as(from + i + j));
        for (; i < n; i++) to[i] = widen_one(from[i]);
    }
}

// A block is two halves of 16 positions, which may lie in two pages.
template <class T> struct Places {
    const T *k[2], *v[2];
    const float *k_scale[2], *v_scale[2]; // of integer pages
    const uint8_t* part[2];               // where a half's keys, values and factors begin, taken from end to end
};

// K or V of a block; `next` is a part of a page that a later block will read, asked for while this one is computed, and
// `again` the part that was asked for before it.
// Parts are asked for from end to end, whatever of K or V is read meanwhile: memory gives lines in their order at a
// higher rate than pages' keys and values in turns.
template <class T> struct Halves {
    const T* const* at; // [2]
    int64_t stride;     // elements from one row, or pair of rows, to the next
    const uint8_t *next = nullptr, *again = nullptr;
};

// NEAR: into the first-level cache, where it has room for what is read and asked for (AttentionArgs.near): attention
// takes 4 to 10 % less on a Zen 5. Elsewhere FAR, into the second-level one, or lines push each other out before they are read.
enum Asked { NOTHING, FAR, NEAR };
template <Asked ASKED> SIMD void ask(const void* line) {
    if (ASKED == NEAR) prefetch(line);
    if (ASKED == FAR) prefetch_far(line);
}

// A core has so many lines under way, 124 on a Zen 5, and drops what it is asked for beyond them without a word. So it is
// asked for again, a part later; a request for what has come costs next to nothing. A Zen 4 loses no far request, and
// takes 1 to 5 % less by the second one all the same: why is not known. Not so where int8 takes longer to compute than to read.
template <Asked ASKED, class T> SIMD void ask_twice(const Halves<T>& of, int64_t at) {
    ask<ASKED>(of.next + at);
    if (sizeof(T) > 1 || (ASKED == NEAR && VW == 16)) ask<ASKED>(of.again + at);
}

// What a part of a page has beyond the `asked` bytes that products over a block have asked for.
template <Asked ASKED> SIMD void ask_for_rest(const AttentionArgs& a, const uint8_t* part, int64_t asked) {
    const int64_t bytes = a.kv.page_size == 16 ? a.kv.page_stride : 16 * a.kv.page_stride / a.kv.page_size;
    for (; asked < bytes; asked += 64) ask<ASKED>(part + asked);
}

// Rows of K that lie side by side.
template <class T> constexpr int64_t kSideBySide = 1;
template <> constexpr int64_t kSideBySide<int8_t> = 2;
template <> constexpr int64_t kSideBySide<int16_t> = 2;

// Where position `position` of the item's sequence lies: the page's part of the item's head.
SIMD const uint8_t* page_of(const AttentionArgs& a, const AttentionItem& item, int64_t position) {
    return head_of(a.kv, (a.page_tables + item.sequence * a.table_width)[page_number(a.kv, position)], item.head);
}

// Where position j of an item is stored, and how many up to `to` lie there one after the other.
struct Run { int64_t at, n; };
SIMD Run run_at(const AttentionArgs& a, const AttentionItem& item, int64_t j, int64_t to) {
    int64_t at = j;
    if (j >= item.tree) { // the token's ancestor of this depth
        const uint64_t* words = a.tree_masks + item.t0 * a.tree_words;
        int64_t left = j - item.tree, bit = 0;
        for (; left > 0 || !(words[bit / 64] >> bit % 64 & 1); bit++) left -= words[bit / 64] >> bit % 64 & 1;
        at = item.tree + bit, to = j + 1;
    } else if (to > item.tree) to = item.tree;
    const int64_t here = a.kv.page_size - place_in_page(a.kv, at);
    return {.at = at, .n = to - j < here ? to - j : here};
}

// Where the two halves of a block lie. Halves past the context are given the first one: what is read
// there is masked.
template <class T>
SIMD void find_halves(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end, Places<T>& h) {
    const KVView& kv = a.kv;
    for (int half = 0; half < 2; half++) {
        const int64_t position = block + 16 * half < end ? block + 16 * half : block;
        const uint8_t* page = page_of(a, item, position);
        const int64_t offset = place_in_page(kv, position);
        h.k[half] = (const T*)page + offset * kSideBySide<T>;
        h.v[half] = (const T*)(page + kv.v_at) + offset * kv.dv;
        h.k_scale[half] = (const float*)(page + kv.ks_at) + offset;
        h.v_scale[half] = (const float*)(page + kv.vs_at) + offset;
        h.part[half] = offset ? page + offset * kv.page_stride / kv.page_size : page;
    }
}

// K and V of positions [from, to) of the block at `block`, page by page; K's other columns are 0.
template <class T>
void load_block(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t from, int64_t to, Attend& w) {
    const KVView& kv = a.kv;
    if (to - from < kRescale) __builtin_memset(w.k, 0, w.d * kRescale * 4);
    for (int64_t j = from; j < to;) {
        const auto [at, n] = run_at(a, item, j, to);
        const int64_t offset = place_in_page(kv, at), column = j - block;
        const uint8_t* page = page_of(a, item, at);
        widen_rows((const T*)page + offset, kv.page_size, w.d, n, w.k + column, kRescale);
        const T* v = (const T*)(page + kv.v_at) + offset * kv.dv;
        if (kv.latent) values_of_latent(w.k, w.dv, w.dvp, column, column + n, w.v);
        else if (w.dv == w.dvp) widen_rows(v, 0, 1, n * w.dv, w.v + column * w.dvp, 0);
        else widen_rows(v, kv.dv, n, w.dv, w.v + column * w.dvp, w.dvp);
        j += n;
    }
}

// Ask for the block at `block`, up to `end`: pages lie apart, where the hardware does not look ahead.
template <class T> void prefetch_positions(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end) {
    const KVView& kv = a.kv;
    if (kv.page_size % 16) return;
    Places<T> h;
    find_halves(a, item, block, end, h);
    const int64_t rows = 64 / (kv.page_size * (int64_t)sizeof(T)), step = rows > 1 ? rows : 1; // of K, in a line
    for (int half = 0; half < 2 && block + 16 * half < end; half++) {
        if (is_integer(kv.type)) prefetch(h.k_scale[half]), prefetch(h.v_scale[half]);
        for (int64_t i = 0; i < kv.d; i += step) prefetch_far(h.k[half] + i * kv.page_size);
        if (!kv.latent)
            for (int64_t i = 0; i < 16 * kv.dv; i += 64 / (int64_t)sizeof(T)) prefetch_far(h.v[half] + i);
    }
}

// The positions that an item's last row sees end here, and the first block that one of its rows sees.
SIMD int64_t end_of(const AttentionArgs& a, const AttentionItem& item) {
    return a.causal ? a.positions[item.t1 - 1] + 1 : a.context_lens[item.sequence];
}
SIMD int64_t first_block(const AttentionArgs& a, const AttentionItem& item) {
    const int64_t start = a.window ? a.positions[item.t0] - a.window + 1 : 0, first = item.c0 * kSplit;
    return (start > first ? start : first) / kRescale * kRescale;
}

// The hardware does not look ahead from page to page: where the block kAhead positions later lies, which may be of one of
// the items after this one.
enum { kAhead = 2 * kRescale };
SIMD int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
SIMD int64_t whole_blocks(int64_t positions) { return (positions + kRescale - 1) / kRescale * kRescale; }
template <class T>
SIMD void find_later(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end, Places<T>& h) {
    const int64_t last = lesser(end, item.c1 * kSplit);
    if (block + kAhead < last) return find_halves(a, item, block + kAhead, last, h);
    int64_t beyond = block + kAhead - whole_blocks(last);
    for (const AttentionItem* next = item.soon; next; next = next->soon) {
        const int64_t first = first_block(a, *next), stop = lesser(end_of(a, *next), next->c1 * kSplit);
        if (first + beyond < stop) return find_halves(a, *next, first + beyond, stop, h);
        beyond -= whole_blocks(stop) - first;
    }
    find_halves(a, item, block, end, h);
}
