// Blocks of integer pages copied to 16 bits, where they cannot be read in place: pages or heads of odd sizes,
// trees, latents, and int8 that many rows share, who would widen it again and again.

template <class E> SIMD void widen_run(const E* from, int64_t n, int16_t* to) {
    for (int64_t i = 0; i < n; i++) to[i] = from[i];
}

// Columns [column, column + n) of keys [d / 2][32][2], from positions [offset, offset + n) of a page.
template <class E>
void copy_keys(const E* page, int64_t page_size, int64_t d, int64_t offset, int64_t column, int64_t n, int16_t* keys) {
    int64_t i = 0;
    for (; i + 1 < d; i += 2) widen_run(page + i * page_size + 2 * offset, 2 * n, keys + i * kRescale + 2 * column);
    if (i == d) return;
    for (int64_t j = 0; j < n; j++) {
        keys[i * kRescale + 2 * (column + j)] = page[i * page_size + offset + j];
        keys[i * kRescale + 2 * (column + j) + 1] = 0;
    }
}

// Rows [column, column + n) of values [16][dvp][2], likewise.
template <class E>
void copy_values(const E* page, int64_t page_size, int64_t dv, int64_t dvp, int64_t offset, int64_t column, int64_t n,
                 int16_t* values) {
    for (int64_t j = 0; j < n;) {
        const int64_t from = offset + j, row = column + j, even = from / 2 * 2;
        const bool paired = even + 1 < page_size;
        if (paired && from == even && row % 2 == 0 && j + 1 < n) {
            widen_run(page + from * dv, 2 * dv, values + row * dvp);
            j += 2;
            continue;
        }
        const E* at = paired ? page + even * dv + from % 2 : page + from * dv;
        const int64_t step = paired ? 2 : 1;
        int16_t* to = values + row / 2 * 2 * dvp + row % 2;
        for (int64_t i = 0; i < dv; i++) to[2 * i] = at[i * step];
        j++;
    }
}

// The values of a latent's columns, which are the first dimensions of its keys.
void values_of_latent_int(const int16_t* keys, int64_t dv, int64_t dvp, int64_t from, int64_t to, int16_t* values) {
    for (int64_t i = 0; i < dv; i++)
        for (int64_t j = from; j < to; j++)
            values[(j / 2 * dvp + i) * 2 + j % 2] = keys[(i / 2 * kRescale + j) * 2 + i % 2];
}

// K and V of positions [from, to) of the block at `block`, and their factors; what else the block has is 0.
template <class E>
void load_block_int(const AttentionArgs& a, const AttentionItem& item, int64_t block, int64_t from, int64_t to, Attend& w) {
    const KVView& kv = a.kv;
    auto *keys = (int16_t*)w.k, *values = (int16_t*)w.v;
    if (to - from < kRescale) {
        __builtin_memset(keys, 0, pairs_of(w.d) * kRescale * 4);
        __builtin_memset(values, 0, kRescale / 2 * w.dvp * 4);
    }
    for (int64_t j = from; j < to;) {
        const auto [at, n] = run_at(a, item, j, to);
        const int64_t offset = place_in_page(kv, at), column = j - block;
        const uint8_t* page = page_of(a, item, at);
        copy_keys((const E*)page, kv.page_size, w.d, offset, column, n, keys);
        if (kv.latent) values_of_latent_int(keys, w.dv, w.dvp, column, column + n, values);
        else copy_values((const E*)(page + kv.v_at), kv.page_size, w.dv, w.dvp, offset, column, n, values);
        __builtin_memcpy(w.k_scale + column, (const float*)(page + kv.ks_at) + offset, n * 4);
        __builtin_memcpy(w.v_scale + column, (const float*)(page + kv.vs_at) + offset, n * 4);
        j += n;
    }
}
