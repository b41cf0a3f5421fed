// Activations to panels: norm, then rounding to int8 per block of 32 (or a plain copy for floats).

// Round a block of 32 (x0, x1) to q = round_half_even(x / d), d = max|x| / 127.
// A NaN or an infinity in the block makes d NaN, and through it every output of the row.
SIMD float quantize_block(F x0, F x1, I* q0, I* q1) {
    // As integers, |NaN| > |inf| > every |x|: one maximum finds both.
    const int32_t top = rmaxi(maxi(bits(abs(x0)), bits(abs(x1))));
    *q0 = *q1 = seti(0);
    if (top >= 0x7f800000) return __builtin_nanf("");
    float largest;
    __builtin_memcpy(&largest, &top, 4);
    const float d = largest / 127.0f;
    if (d == 0.0f) return 0.0f;
    F t0 = x0 * set1(1.0f / d), t1 = x1 * set1(1.0f / d);
    F r0 = round_even(t0), r1 = round_even(t1);
    // The product is within 3e-5 of the quotient, so only near a half can they round differently,
    // and where 1 / d overflows. Then divide, as the specification does.
    if (__builtin_expect(any(less(set1(0.4999f), max(abs(t0 - r0), abs(t1 - r1)))) || d < 1e-37f, 0)) {
        r0 = round_even(x0 / set1(d));
        r1 = round_even(x1 / set1(d));
    }
    *q0 = to_int(r0);
    *q1 = to_int(r1);
    return d;
}

void prepare_quantized(const PrepareArgs& a, int64_t token, int64_t start, int64_t c) {
    const float* x = a.x + (a.rows ? a.rows[token] : token) * a.to.k;
    const int64_t k = a.to.k, blocks = k / kBlock, m = token - start;
    const Affine s = row_statistics(x, k, a.norm, a.eps);
    int8_t* q = a.to.q + start * k;
    float* d = a.to.d + start * blocks + m;
    float* u = a.to.u + start * blocks + m;
    int32_t* sum = a.to.sum + start * blocks + m;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t i = b * kBlock;
        F x0 = load(x + i), x1 = load(x + i + 16);
        if (a.norm != NormKind::None) {
            F b0, b1;
            if (a.bias) b0 = load(a.bias + i), b1 = load(a.bias + i + 16);
            x0 = normalized(x0, load(a.gain + i), a.bias ? &b0 : nullptr, s, a.norm);
            x1 = normalized(x1, load(a.gain + i + 16), a.bias ? &b1 : nullptr, s, a.norm);
        }
        I q0, q1;
        const float scale = quantize_block(x0, x1, &q0, &q1);
        const int32_t total = rsumi(addi(q0, q1));
        alignas(32) int8_t bytes[32];
        store_s8(bytes, q0);
        store_s8(bytes + 16, q1);
        for (int j = 0; j < 8; j++) __builtin_memcpy(q + ((b * 8 + j) * c + m) * 4, bytes + 4 * j, 4);
        d[b * c] = scale;
        u[b * c] = scale * (float)total;
        sum[b * c] = total * a.to.offset;
    }
}

void prepare_float(const PrepareArgs& a, int64_t token, int64_t start, int64_t c, float* scratch) {
    const float* x = a.x + (a.rows ? a.rows[token] : token) * a.to.k;
    if (a.norm != NormKind::None) {
        norm_row(x, scratch, a.to.k, a.norm, a.gain, a.bias, a.eps);
        x = scratch;
    }
    float* panel = a.to.x + start * a.to.k + (token - start);
    for (int64_t k = 0; k < a.to.k; k++) panel[k * c] = x[k];
}

void prepare_rows(const PrepareArgs& a, int64_t begin, int64_t end, float* scratch) {
    for (int64_t token = begin; token < end; token++) {
        const int64_t tile = tile_of(a.to.tiles, token);
        const int64_t start = tile_start(a.to.tiles, tile), c = tile_size(a.to.tiles, tile);
        if (a.to.q) prepare_quantized(a, token, start, c);
        else prepare_float(a, token, start, c, scratch);
    }
}
