// U2 and U3 met as S8By16 with f32 scales: a panel is widened into scratch, whoever computes it and for how many tokens, so that
// memory gives two or three bits a number and the tiles are those of bytes. U2's minima are added behind the products.

enum : int64_t { kSteppedBytes = 512 + 2 * 64, kMinimaBytes = 2 * 64 }; // of a block

#if defined(__AVX512BW__)
SIMD Bytes all_bytes(uint8_t x) { return _mm512_set1_epi8((char)x); }
#elif defined(__AVX2__)
SIMD Bytes all_bytes(uint8_t x) { return _mm256_set1_epi8((char)x); }
#else
SIMD Bytes all_bytes(uint8_t x) { return (uint16_t)(x * 0x101) - Bytes{}; }
#endif

// Quad QUAD of a block's numbers: shifts of pairs of bytes, whose other byte's bits are masked off.
template <bool THIRD, int QUAD> SIMD void widen_quad(const uint8_t* block, uint8_t* to) {
    UNROLL for (int64_t i = 0; i < 64; i += (int64_t)sizeof(Bytes)) {
        Bytes x = shift_right<QUAD / 2 * 2>(load_bytes(block + QUAD % 2 * 64 + i)) & all_bytes(3);
        if (THIRD) {
            const Bytes bits = load_bytes(block + 128 + i);
            const Bytes third = QUAD < 2 ? shift_left<QUAD < 2 ? 2 - QUAD : 0>(bits) : shift_right<QUAD < 2 ? 0 : QUAD - 2>(bits);
            // Less 4: no byte of x | 128 borrows from its neighbour.
            x = (((x | (third & all_bytes(4))) | all_bytes(128)) - all_bytes(4)) ^ all_bytes(128);
        }
        store_bytes(to + QUAD * 64 + i, x);
    }
}

template <bool THIRD> __attribute__((noinline)) void widen_steps(const Matrix& w, int64_t p, bool streams, uint8_t* to, float* minima) {
    const uint8_t* panel = w.data + p * w.panel_bytes;
    const int64_t blocks = w.k / kBlock, bytes = value_bytes(w.layout), size = tables_bytes(w);
    alignas(64) float d[kPanel], least[kPanel] = {};
    for (int64_t b = 0; b < blocks; b++, to += kSteppedBytes) {
        if (streams) prefetch_bytes(panel + kStream, w.block_bytes);
        const uint8_t *steps = panel + bytes - 2 * kPanel, *tables = panel + bytes;
        if (b % w.group == 0) {
            store(d, load_f16((const uint16_t*)tables));
            if (!THIRD) store(least, load_f16((const uint16_t*)(tables + 32)));
        }
        widen_quad<THIRD, 0>(panel, to), widen_quad<THIRD, 1>(panel, to), widen_quad<THIRD, 2>(panel, to), widen_quad<THIRD, 3>(panel, to);
        widen_quad<THIRD, 4>(panel, to), widen_quad<THIRD, 5>(panel, to), widen_quad<THIRD, 6>(panel, to), widen_quad<THIRD, 7>(panel, to);
        float* scales = (float*)(to + 512);
        for (int64_t i = 0; i < 2 * kPanel; i++) {
            scales[i] = d[i % kPanel] * (float)(THIRD ? steps[i] - 32 : steps[i] & 15);
            if (!THIRD) minima[i] = least[i % kPanel] * (float)(steps[i] >> 4);
        }
        if (!THIRD) minima += 2 * kPanel;
        panel += bytes + (b % w.group == 0 ? size : 0);
    }
}

SIMD void any_widen_steps(const Matrix& w, int64_t p, bool streams, uint8_t* to, float* minima) {
    if (w.layout == Layout::U3) widen_steps<true>(w, p, streams, to, minima);
    else widen_steps<false>(w, p, streams, to, minima);
}

// z + minimum u, half blocks ascending. sum: -128 times the sum of a half block's q (prepare.inl), exact in f32.
template <int C> __attribute__((noinline)) void add_minima(const float* minima, const float* d, const int32_t* sum, int64_t blocks, float* out) {
    F z[C];
    UNROLL for (int m = 0; m < C; m++) z[m] = load(out + 16 * m);
    for (int64_t b = 0; b < blocks; b++, d += C)
        for (int half = 0; half < 2; half++, sum += C, minima += kPanel) {
            const F n = load(minima);
            UNROLL for (int m = 0; m < C; m++) z[m] = fma(n, set1(d[m] * ((float)sum[m] * (-1.0f / 128.0f))), z[m]);
        }
    UNROLL for (int m = 0; m < C; m++) store(out + 16 * m, z[m]);
}
