// Multi-head latent attention: a token's only key is [latent | rotated part], and its value is the
// latent, which the page holds once (KVView::latent).

// Columns [from, to) of k [d][32] as rows of v [32][dvp]: the values of a block whose keys were loaded.
void values_of_latent(const float* k, int64_t dv, int64_t dvp, int64_t from, int64_t to, float* v) {
    for (int64_t i = 0; i < dv; i++, k += kRescale)
        for (int64_t j = from; j < to; j++) v[j * dvp + i] = k[j];
}

// Units are (token, head slot): the query heads, then the key. scratch: 3 d floats.
void latent_append(const LatentArgs& a, int64_t begin, int64_t end, float* scratch) {
    const int64_t d = a.kv.d, dv = a.kv.dv, rope = d - dv, per_token = a.heads + 1;
    RotaryArgs rotary{}; // of the part that turns, and only of it
    rotary.kv.d = rope;
    rotary.cos = a.cos, rotary.sin = a.sin;
    rotary.rotary_dim = rope, rotary.interleaved = a.interleaved;
    RotaryArgs pages{};
    pages.kv = a.kv;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t token = unit / per_token, head = unit % per_token;
        const bool query = head < a.heads;
        const int64_t row = token * a.heads + head;
        float* y = query ? a.q + row * d : scratch;
        __builtin_memcpy(y, query ? a.q_latent + row * dv : a.latent + token * dv, dv * 4);
        rotate(rotary, query ? a.q_rope + row * rope : a.k_rope + token * rope, y + dv, a.positions[token]);
        if (!query) store_key(pages, y, a.slots[token], 0, (uint8_t*)(scratch + d));
    }
}
