// Blocks of integer pages.

// A block of integer pages in place, for many rows.
template <class E>
void attend_many(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t end, Attend& w) {
    Places<E> here;
    find_halves(a, item, block, end, here);
    take_factors(here, w);
    if (block + kRescale < end) prefetch_positions<E>(a, item, block + kRescale, end);
    attend_block(a, item, block, w, Integers<NOTHING, E>{w, {here.k, 2 * a.kv.page_size}, {here.v, 2 * a.kv.dv}});
}

// Integer pages copied first.
void attend_copied(const AttentionArgs& a, const AttentionItem& item, int64_t block, Attend& w) {
    const auto *keys = (const int16_t*)w.k, *values = (const int16_t*)w.v;
    const int16_t* k[2] = {keys, keys + kRescale};
    const int16_t* v[2] = {values, values + kRescale / 2 * w.dvp};
    attend_block(a, item, block, w, Integers<NOTHING, int16_t>{w, {k, 2 * kRescale}, {v, 2 * w.dvp}});
}

// Blocks [begin, stop) of one split, of whose positions [from, to) are seen by some row.
template <class E>
void attend_split_int(const AttentionArgs& a, const AttentionItem& item, int64_t begin, int64_t stop, int64_t from,
                      int64_t to, Attend& w) {
    if (w.few) {
        const int64_t in_place = item.tree < stop ? item.tree / kRescale * kRescale : stop;
        for (int64_t next; begin < in_place; begin = next) {
            next = plain_end(a, w, begin, in_place);
            if (next > begin) {
                (a.near ? attend_plainly<NEAR, E> : attend_plainly<FAR, E>)(a, item, begin, next, to, w);
                continue;
            }
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
