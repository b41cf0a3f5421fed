// One panel of weights against C tokens, over the blocks of K: W's integer dot products, scaled. Sums lie in memory.

template <bool WIDE> SIMD F block_scales(const uint8_t* table) {
    return WIDE ? load((const float*)table) : load_f16((const uint16_t*)table);
}

template <int C, class W, bool WIDE, bool MIN>
__attribute__((noinline)) void dot_panel(const uint8_t* w, const int8_t* q, const float* d, const float* u,
                                         const int32_t* sum, int64_t blocks, Ahead, float* out) {
    constexpr int64_t table = WIDE ? 64 : 32, step = W::bytes + table * (W::parts + MIN);
    for (int m = 0; m < C; m++) store(out + 16 * m, zero());
    for (int64_t b = 0; b < blocks; b++, w += step, d += C, u += C) {
        const uint8_t* scales = w + W::bytes;
        for (int part = 0; part < W::parts; part++, q += W::quads * 4 * C, sum += C) {
            I c[C];
            W::template dot<C, MIN>(w + part * W::quads * 64, q, sum, c);
            const F s = block_scales<WIDE>(scales + part * table);
            for (int m = 0; m < C; m++) {
                F z = load(out + 16 * m);
                const F dot = to_float(c[m]), scale = set1(d[m]);
                if (!W::dot_by_scale) z = fma(dot, s * scale, z);
                if (MIN) z = fma(block_scales<WIDE>(scales + W::parts * table), set1(u[m]), z);
                store(out + 16 * m, W::dot_by_scale ? fma(dot * s, scale, z) : z);
            }
        }
    }
}
