// Split a qkv row, normalize and rotate q and k, write k and v to their page.

#include "round16.inl"

// x [n] to the page's number type; d is the factor of integer pages.
void narrow_row(const float* x, int64_t n, KVType type, bool is_key, uint8_t* y, float* d) {
    switch (type) {
    case KVType::F32: __builtin_memcpy(y, x, n * 4); return;
    case KVType::F16: {
        auto* h = (uint16_t*)y;
        int64_t i = 0;
        for (; i + 16 <= n; i += 16) store_f16(h + i, load(x + i));
        for (; i < n; i++) h[i] = narrow_f16(x[i]);
        return;
    }
    case KVType::BF16:
        for (int64_t i = 0; i < n; i++) ((uint16_t*)y)[i] = narrow_bf16(x[i]);
        return;
    case KVType::S8: *d = round_row_s8(x, n, y); return;
    case KVType::S16: *d = round_row(x, n, is_key ? kKeyBounds : kValueBounds, (int16_t*)y); return;
    }
}

void rotate(const RotaryArgs& a, const float* x, float* y, int64_t position) {
    const int64_t d = a.kv.d, half = a.cos ? a.rotary_dim / 2 : 0;
    const float* cos = a.cos + position * half;
    const float* sin = a.sin + position * half;
    int64_t i = 0;
    if (a.interleaved) {
        for (; i < half; i++) {
            const float p = x[2 * i], q = x[2 * i + 1];
            y[2 * i] = p * cos[i] - q * sin[i];
            y[2 * i + 1] = q * cos[i] + p * sin[i];
        }
    } else {
        for (; i + 16 <= half; i += 16) {
            const F p = load(x + i), q = load(x + half + i), c = load(cos + i), s = load(sin + i);
            store(y + i, p * c - q * s);
            store(y + half + i, q * c + p * s);
        }
        for (; i < half; i++) {
            const float p = x[i], q = x[half + i];
            y[i] = p * cos[i] - q * sin[i];
            y[half + i] = q * cos[i] + p * sin[i];
        }
    }
    for (i = 2 * half; i < d; i++) y[i] = x[i];
}

// Integer pages hold pairs: of dimensions of a key, of positions of a value (KVView).
template <class E> void store_key_pairs(const E* k, int64_t d, int64_t page_size, int64_t offset, E* keys) {
    int64_t i = 0;
    for (; i + 1 < d; i += 2) __builtin_memcpy(keys + i * page_size + 2 * offset, k + i, 2 * sizeof(E));
    if (i < d) keys[i * page_size + offset] = k[i];
}
template <class E> void store_value_pairs(const E* v, int64_t dv, int64_t page_size, int64_t offset, E* values) {
    const int64_t even = offset / 2 * 2;
    if (even + 1 == page_size) __builtin_memcpy(values + offset * dv, v, dv * sizeof(E)); // has no second
    else
        for (int64_t i = 0; i < dv; i++) values[even * dv + 2 * i + offset % 2] = v[i];
}

void store_key(const RotaryArgs& a, const float* k, int64_t slot, int64_t head, uint8_t* narrow) {
    const KVView& kv = a.kv;
    uint8_t* keys = head_of(kv, slot / kv.page_size, head);
    const int64_t offset = slot % kv.page_size, size = element_size(kv.type);
    float scale = 0.0f;
    narrow_row(k, kv.d, kv.type, true, narrow, &scale);
    uint8_t* to = keys + offset * size;
    const int64_t stride = kv.page_size * size; // transposed: one element per row of positions
    if (kv.type == KVType::S8) store_key_pairs((const int8_t*)narrow, kv.d, kv.page_size, offset, (int8_t*)keys);
    else if (kv.type == KVType::S16) store_key_pairs((const int16_t*)narrow, kv.d, kv.page_size, offset, (int16_t*)keys);
    else if (size == 2)
        for (int64_t i = 0; i < kv.d; i++) __builtin_memcpy(to + i * stride, narrow + 2 * i, 2);
    else
        for (int64_t i = 0; i < kv.d; i++) __builtin_memcpy(to + i * stride, narrow + 4 * i, 4);
    if (is_integer(kv.type)) ((float*)(keys + kv.ks_at))[offset] = scale;
}

void store_value(const RotaryArgs& a, const float* v, int64_t slot, int64_t head) {
    const KVView& kv = a.kv;
    uint8_t* at = head_of(kv, slot / kv.page_size, head);
    const int64_t offset = slot % kv.page_size;
    uint8_t* values = at + kv.v_at;
    float scale = 0.0f;
    if (!is_integer(kv.type))
        return narrow_row(v, kv.dv, kv.type, false, values + offset * kv.dv * element_size(kv.type), &scale);
    int16_t row[kMaxHead];
    narrow_row(v, kv.dv, kv.type, false, (uint8_t*)row, &scale);
    if (kv.type == KVType::S16) store_value_pairs(row, kv.dv, kv.page_size, offset, (int16_t*)values);
    else store_value_pairs((const int8_t*)row, kv.dv, kv.page_size, offset, (int8_t*)values);
    ((float*)(at + kv.vs_at))[offset] = scale;
}

// Units are (token, head slot): query heads, then key heads, then value heads. scratch: 3 d floats.
void rotary_append(const RotaryArgs& a, int64_t begin, int64_t end, float* scratch) {
    const int64_t d = a.kv.d, heads = a.heads, kv_heads = a.kv.heads, per_token = heads + 2 * kv_heads;
    const int64_t width = (heads + kv_heads) * d + kv_heads * a.kv.dv;
    int64_t measured = -1; // which row of which token `together` describes
    Affine together{};
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t token = unit / per_token, slot = unit % per_token;
        const float* row = a.qkv + token * width;
        if (slot >= heads + kv_heads) {
            const int64_t head = slot - heads - kv_heads;
            store_value(a, row + (heads + kv_heads) * d + head * a.kv.dv, a.slots[token], head);
            continue;
        }
        const bool query = slot < heads;
        const float* x = row + slot * d;
        const float* gain = query ? a.q_norm : a.k_norm;
        if (gain) {
            Affine s;
            if (query ? a.q_together : a.k_together) {
                if (measured != 2 * token + query) {
                    measured = 2 * token + query;
                    const float* side = query ? row : row + heads * d;
                    together = row_statistics(side, (query ? heads : kv_heads) * d, NormKind::Rms, a.eps);
                }
                s = together;
                gain += (query ? slot : slot - heads) * d;
            } else s = row_statistics(x, d, NormKind::Rms, a.eps);
            apply_norm(x, scratch, d, s, NormKind::Rms, gain, nullptr);
            x = scratch;
        }
        float* y = query ? a.q + (token * heads + slot) * d : scratch + d;
        rotate(a, x, y, a.positions[token]);
        if (!query) store_key(a, y, a.slots[token], slot - heads, (uint8_t*)(scratch + 2 * d));
    }
}
