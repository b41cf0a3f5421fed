// One panel of weights against C tokens, over the blocks of K: W's integer dot products, scaled. Sums lie in memory.

template <int TABLES> SIMD F block_scales(const uint8_t* table, const uint8_t* steps) {
    if (TABLES == kSingle) return load((const float*)table);
    const F x = load_f16((const uint16_t*)table);
    if (TABLES == kHalf) return x;
    I factors;
    for (int i = 0; i < 16; i++) factors[i] = (int8_t)steps[i];
    return x * to_float(factors);
}

template <int TABLES, int MIN> SIMD F block_minima(F s, const uint8_t* table, const uint8_t* steps) {
    if (MIN == kMinima) return block_scales<TABLES>(table, steps);
    I zeros;
    for (int i = 0; i < 16; i++) zeros[i] = table[i];
    return (zero() - s) * to_float(zeros);
}

template <int C, class W, int TABLES, int MIN>
__attribute__((noinline)) void dot_panel(const uint8_t* w, const int8_t* q, const float* d, const float* u,
                                         const int32_t* sum, int64_t blocks, int64_t group, Ahead, float* out) {
    constexpr int64_t bytes = W::bytes + steps_of(TABLES, W::parts, MIN), size = tables_of(TABLES, W::parts, MIN);
    constexpr int64_t table = TABLES == kSteps ? 0 : table_bytes(TABLES == kSingle); // from part to part
    constexpr int64_t minima = tables_of(TABLES, W::parts, kNoMinima);
    Blocks<W::grouped || TABLES == kSteps> at{.w = w, .group = group};
    for (int m = 0; m < C; m++) store(out + 16 * m, zero());
    for (int64_t b = 0; b < blocks; b++, d += C, u += C) {
        at.begin(bytes);
        const uint8_t *scales = at.tables, *steps = at.w + W::bytes;
        for (int part = 0; part < W::parts; part++, q += W::quads * 4 * C, sum += C) {
            I c[C];
            W::template dot<C, MIN != kNoMinima>(at.w + part * W::part_bytes, q, sum, c);
            const F s = block_scales<TABLES>(scales + part * table, steps + part * kPanel);
            for (int m = 0; m < C; m++) {
                F z = load(out + 16 * m);
                const F dot = to_float(c[m]), scale = set1(d[m]);
                if (!W::dot_by_scale) z = fma(dot, s * scale, z);
                if (MIN) z = fma(block_minima<TABLES, MIN>(s, scales + minima, steps + W::parts * (int64_t)kPanel), set1(u[m]), z);
                store(out + 16 * m, W::dot_by_scale ? fma(dot * s, scale, z) : z);
            }
        }
        at.next(bytes, size);
    }
}
