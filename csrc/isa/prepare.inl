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

// Where the integer dot products of a block start, whose q add up to total. U4's sums in int16 (INTEGER_SCALES) start at
// half of that in each of a row's two lanes: a lane ends at (w - 4) q of its own and -4 q of the other's, at most
// 16 x 11 x 127 + 16 x 4 x 127 = 30,480.
SIMD int32_t start_of(int32_t total, int32_t offset) {
#if INTEGER_SCALES
    if (offset == offset_of(Layout::U4)) return (int32_t)((uint32_t)(uint16_t)(total * -4) * 0x10001u);
#endif
    return total * offset;
}

template <class T> using Four __attribute__((vector_size(16))) = T;

// q = round_half_even(x / d) of four blocks, d being max|x| / 127; q 0 where d is 0 or NaN.
SIMD void round_blocks(const Block* b, Four<float> d, I (*q)[2]) {
    const Four<float> inverse = 1.0f / d;
    F r[4][2], most = zero();
    UNROLL for (int i = 0; i < 4; i++) {
        const F t0 = b[i].x0 * set1(inverse[i]), t1 = b[i].x1 * set1(inverse[i]);
        r[i][0] = round_even(t0), r[i][1] = round_even(t1);
        most = max(max(abs(t0 - r[i][0]), abs(t1 - r[i][1])), most);
    }
    // The product is within 3e-5 of the quotient, so only near a half can they round differently, and
    // where 1 / d overflows. Then divide, as the specification does.
    const Four<int32_t> tiny = ~(d > 1e-37f);
    if (__builtin_expect(any(less(set1(0.49996f), most)) || (tiny[0] | tiny[1] | tiny[2] | tiny[3]), 0)) {
        for (int i = 0; i < 4; i++) {
            const bool usable = d[i] > 0.0f; // neither 0 nor NaN
            r[i][0] = usable ? round_even(b[i].x0 / set1(d[i])) : zero();
            r[i][1] = usable ? round_even(b[i].x1 / set1(d[i])) : zero();
        }
    }
    UNROLL for (int i = 0; i < 4; i++) q[i][0] = to_int(r[i][0]), q[i][1] = to_int(r[i][1]);
}

// Round count <= 4 blocks to q = round_half_even(x / d), d = max|x| / 127. A NaN or an infinity in a
// block makes its d NaN, and through it every output of the row. Four at once share the reductions.
template <bool ALONE>
SIMD void quantize_blocks(const Block* b, int count, int64_t c, int8_t* q, float* d, float* u, int32_t* sum,
                          int32_t offset, int parts) {
    I top[4], total[4], begun[4], rounded[4][2];
    UNROLL for (int i = 0; i < 4; i++)
        // As integers, |NaN| > |inf| > every |x|: one maximum finds both.
        top[i] = maxi(bits(abs(b[i].x0)), bits(abs(b[i].x1)));
    alignas(16) int32_t totals[4], halves[4];
    Four<int32_t> tops;
    rmaxi4((int32_t*)&tops, top);
    const Four<int32_t> bad = tops >= 0x7f800000; // then a NaN
    const Four<float> scale = (Four<float>)(((Four<int32_t>)((Four<float>)tops / 127.0f) & ~bad) | (bad & 0x7fc00000));
    round_blocks(b, scale, rounded);
    UNROLL for (int i = 0; i < 4; i++) {
        const I q0 = rounded[i][0], q1 = rounded[i][1];
        total[i] = addi(q0, q1);
        begun[i] = q0;
        if (i >= count) continue;
        if (ALONE) {
            store_s8(q + i * 32, q0);
            store_s8(q + i * 32 + 16, q1);
        } else {
            alignas(32) int32_t quads[8];
            store_s8((int8_t*)quads, q0);
            store_s8((int8_t*)quads + 16, q1);
            int8_t* to = q + i * 32 * c;
            UNROLL for (int j = 0; j < 8; j++, to += c * 4) __builtin_memcpy(to, quads + j, 4);
        }
    }
    rsumi4(totals, total);
    for (int i = 0; i < count; i++) {
        d[i * c] = scale[i];
        u[i * c] = scale[i] * (float)totals[i];
        sum[i * parts * c] = start_of(totals[i], offset);
    }
    if (parts == 1) return;
    rsumi4(halves, begun);
    for (int i = 0; i < count; i++) {
        sum[2 * i * c] = halves[i] * offset;
        sum[(2 * i + 1) * c] = (totals[i] - halves[i]) * offset;
    }
}

template <bool ALONE> void prepare_quantized(const PrepareArgs& a, int64_t token, int64_t start, int64_t c) {
    const float* x = a.x + (a.rows ? a.rows[token] : token) * a.to.k;
    const int64_t k = a.to.k, blocks = k / kBlock, m = token - start;
    const Affine s = row_statistics(x, k, a.norm, a.eps);
    int8_t* q = a.to.q + start * k + m * 4;
    const int64_t at = start * blocks + m, sums_at = start * blocks * a.to.parts + m;
    int64_t block = 0;
    const auto quantize = [&](const Block* b, int count) {
        const int64_t to = at + block * c;
        quantize_blocks<ALONE>(b, count, c, q + block * 32 * c, a.to.d + to, a.to.u + to,
                               a.to.sum + sums_at + block * a.to.parts * c, a.to.offset, a.to.parts);
    };
    Block b[4];
    for (; block + 4 <= blocks; block += 4) {
        UNROLL for (int i = 0; i < 4; i++) b[i] = load_block(a, x, (block + i) * kBlock, s);
        quantize(b, 4);
    }
    if (block == blocks) return;
    for (int i = 0; i < 4; i++) b[i] = load_block(a, x, (block + i < blocks ? block + i : block) * kBlock, s);
    quantize(b, (int)(blocks - block));
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
        if (a.to.q && c == 1) prepare_quantized<true>(a, token, start, c);
        else if (a.to.q) prepare_quantized<false>(a, token, start, c);
        else prepare_float(a, token, start, c, scratch);
    }
}
