// Activations to panels: norm, then rounding to int8 per block of 32 (or a plain copy for floats).

struct Block { F x0, x1; }; // 32 elements

SIMD Block load_block(const PrepareArgs& a, const float* x, int64_t i, Affine s) {
    Block b = {load(x + i), load(x + i + 16)};
    if (a.norm == NormKind::None) return b;
    F b0, b1;
    if (a.bias) b0 = load(a.bias + i), b1 = load(a.bias + i + 16);
    b.x0 = normalized(b.x0, load(a.gain + i), a.bias ? &b0 : nullptr, s, a.norm);
    b.x1 = normalized(b.x1, load(a.gain + i + 16), a.bias ? &b1 : nullptr, s, a.norm);
    return b;
}

// q = round_half_even(x / d) for a block whose largest |x| is d * 127; q 0 where d is 0 or NaN.
SIMD void round_block(Block b, float d, float inverse, I* q0, I* q1) {
    F t0 = b.x0 * set1(inverse), t1 = b.x1 * set1(inverse);
    F r0 = round_even(t0), r1 = round_even(t1);
    // The product is within 3e-5 of the quotient, so only near a half can they round differently, and
    // where 1 / d overflows. Then divide, as the specification does.
    if (__builtin_expect(any(less(set1(0.4999f), max(abs(t0 - r0), abs(t1 - r1)))) || !(d > 1e-37f), 0)) {
        const bool usable = d > 0.0f; // neither 0 nor NaN
        r0 = usable ? round_even(b.x0 / set1(d)) : zero();
        r1 = usable ? round_even(b.x1 / set1(d)) : zero();
    }
    *q0 = to_int(r0);
    *q1 = to_int(r1);
}

template <class T> using Four __attribute__((vector_size(16))) = T;

// Round count <= 4 blocks to q = round_half_even(x / d), d = max|x| / 127. A NaN or an infinity in a
// block makes its d NaN, and through it every output of the row. Four at once share the reductions.
SIMD void quantize_blocks(const Block* b, int count, int64_t c, int8_t* q, float* d, float* u, int32_t* sum,
                          int32_t offset, int parts) {
    I top[4], total[4], begun[4];
    for (int i = 0; i < 4; i++) {
        const Block& x = b[i < count ? i : 0];
        // As integers, |NaN| > |inf| > every |x|: one maximum finds both.
        top[i] = maxi(bits(abs(x.x0)), bits(abs(x.x1)));
    }
    alignas(16) int32_t totals[4], halves[4];
    Four<int32_t> tops;
    rmaxi4((int32_t*)&tops, top);
    const Four<int32_t> bad = tops >= 0x7f800000; // then a NaN
    const Four<float> scale = (Four<float>)(((Four<int32_t>)((Four<float>)tops / 127.0f) & ~bad) | (bad & 0x7fc00000));
    const Four<float> inverse = 1.0f / scale;
    for (int i = 0; i < 4; i++) {
        I q0, q1;
        round_block(b[i < count ? i : 0], scale[i], inverse[i], &q0, &q1);
        total[i] = addi(q0, q1);
        begun[i] = q0;
        if (i >= count) continue;
        int8_t* to = q + i * 32 * c;
        if (c == 1) {
            store_s8(to, q0);
            store_s8(to + 16, q1);
        } else {
            alignas(32) int32_t quads[8];
            store_s8((int8_t*)quads, q0);
            store_s8((int8_t*)quads + 16, q1);
            for (int j = 0; j < 8; j++) __builtin_memcpy(to + j * c * 4, quads + j, 4);
        }
    }
    rsumi4(totals, total);
    for (int i = 0; i < count; i++) {
        d[i * c] = scale[i];
        u[i * c] = scale[i] * (float)totals[i];
        sum[i * parts * c] = totals[i] * offset;
    }
    if (parts == 1) return;
    rsumi4(halves, begun);
    for (int i = 0; i < count; i++) {
        sum[2 * i * c] = halves[i] * offset;
        sum[(2 * i + 1) * c] = (totals[i] - halves[i]) * offset;
    }
}

void prepare_quantized(const PrepareArgs& a, int64_t token, int64_t start, int64_t c) {
    const float* x = a.x + (a.rows ? a.rows[token] : token) * a.to.k;
    const int64_t k = a.to.k, blocks = k / kBlock, m = token - start;
    const Affine s = row_statistics(x, k, a.norm, a.eps);
    int8_t* q = a.to.q + start * k + m * 4;
    const int64_t at = start * blocks + m, sums_at = start * blocks * a.to.parts + m;
    for (int64_t block = 0; block < blocks; block += 4) {
        const int count = blocks - block < 4 ? (int)(blocks - block) : 4;
        Block b[4];
        for (int i = 0; i < count; i++) b[i] = load_block(a, x, (block + i) * kBlock, s);
        const int64_t to = at + block * c;
        quantize_blocks(b, count, c, q + block * 32 * c, a.to.d + to, a.to.u + to,
                        a.to.sum + sums_at + block * a.to.parts * c, a.to.offset, a.to.parts);
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
