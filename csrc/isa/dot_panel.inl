// One panel of weights against C tokens, over the blocks of K: W's integer dot products, scaled. Sums lie in memory.

template <bool WIDE> SIMD F block_scales(const uint8_t* table) {
    return WIDE ? load((const float*)table) : load_f16((const uint16_t*)table);
}

template <bool WIDE, int MIN> SIMD F block_minima(F s, const uint8_t* table) {
    if (MIN == kMinima) return block_scales<WIDE>(table);
    I zeros;
    for (int i = 0; i < 16; i++) zeros[i] = table[i];
    return (zero() - s) * to_float(zeros);
}

template <int C, class W, bool WIDE, int MIN>
__attribute__((noinline)) void dot_panel(const uint8_t* w, const int8_t* q, const float* d, const float* u,
                                         const int32_t* sum, int64_t blocks, int64_t group, Ahead, float* out) {
    constexpr int64_t table = WIDE ? 64 : 32;
    Blocks<W::grouped> at{.w = w, .group = group};
    for (int m = 0; m < C; m++) store(out + 16 * m, zero());
    for (int64_t b = 0; b < blocks; b++, d += C, u += C) {
        at.begin(W::bytes);
        const uint8_t* scales = at.tables;
        for (int part = 0; part < W::parts; part++, q += W::quads * 4 * C, sum += C) {
            I c[C];
            W::template dot<C, MIN != kNoMinima>(at.w + part * W::quads * 64, q, sum, c);
            const F s = block_scales<WIDE>(scales + part * table);
            for (int m = 0; m < C; m++) {
                F z = load(out + 16 * m);
                const F dot = to_float(c[m]), scale = set1(d[m]);
                if (!W::dot_by_scale) z = fma(dot, s * scale, z);
                if (MIN) z = fma(block_minima<WIDE, MIN>(s, scales + W::parts * table), set1(u[m]), z);
                store(out + 16 * m, W::dot_by_scale ? fma(dot * s, scale, z) : z);
            }
        }
        at.next(W::bytes, tables_of(WIDE, W::parts, MIN));
    }
}
