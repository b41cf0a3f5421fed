// Split a qkv row, normalize and rotate q and k, write k and v to their page.

// x [n] to the page's number type; d is the scale of int8 pages.
void narrow_row(const float* x, int64_t n, KVType type, uint8_t* y, float* d) {
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
    case KVType::S8: {
        I top = seti(0); // as integers, NaN and infinity are the largest
        for (int64_t i = 0; i < n; i += 16) top = maxi(top, bits(abs(load_n(x + i, n - i < 16 ? n - i : 16))));
        const int32_t largest_bits = rmaxi(top);
        float largest;
        __builtin_memcpy(&largest, &largest_bits, 4);
        const bool finite = largest_bits < 0x7f800000;
        *d = finite ? largest / 127.0f : __builtin_nanf("");
        for (int64_t i = 0; i < n; i += 16) {
            const int64_t count = n - i < 16 ? n - i : 16;
            int8_t lanes[16] = {};
            if (finite && *d != 0.0f) store_s8(lanes, to_int(round_even(load_n(x + i, count) / set1(*d))));
            __builtin_memcpy(y + i, lanes, count);
        }
        return;
    }
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

int64_t element_size(KVType type) { return type == KVType::F32 ? 4 : type == KVType::S8 ? 1 : 2; }

void store_key(const RotaryArgs& a, const float* k, int64_t slot, int64_t head, uint8_t* narrow) {
    const KVView& kv = a.kv;
    uint8_t* keys = head_of(kv, slot / kv.page_size, head);
    const int64_t offset = slot % kv.page_size, size = element_size(kv.type);
    float scale = 0.0f;
    narrow_row(k, kv.d, kv.type, narrow, &scale);
    uint8_t* to = keys + offset * size;
    const int64_t stride = kv.page_size * size; // transposed: one element per row of positions
    if (size == 2)
        for (int64_t i = 0; i < kv.d; i++) __builtin_memcpy(to + i * stride, narrow + 2 * i, 2);
    else if (size == 4)
        for (int64_t i = 0; i < kv.d; i++) __builtin_memcpy(to + i * stride, narrow + 4 * i, 4);
    else
        for (int64_t i = 0; i < kv.d; i++) to[i * stride] = narrow[i];
    if (kv.type == KVType::S8) ((float*)(keys + kv.ks_at))[offset] = scale;
}

void store_value(const RotaryArgs& a, const float* v, int64_t slot, int64_t head) {
    const KVView& kv = a.kv;
    uint8_t* at = head_of(kv, slot / kv.page_size, head);
    const int64_t offset = slot % kv.page_size;
    float scale = 0.0f;
    narrow_row(v, kv.dv, kv.type, at + kv.v_at + offset * kv.dv * element_size(kv.type), &scale);
    if (kv.type == KVType::S8) ((float*)(at + kv.vs_at))[offset] = scale;
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
