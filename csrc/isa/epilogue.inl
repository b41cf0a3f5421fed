// What becomes of a tile's sums: ops.linear's last steps. Whole panels without a bias, a scale or a soft cap, nearly all
// there are, have loops of their own in which nothing is asked again.

SIMD F finish(F z, const LinearArgs& a) { // steps 3 of ops.linear
    if (a.scale != 1.0f) z = z * set1(a.scale);
    if (a.softcap != 0.0f) z = set1(a.softcap) * tanh(z / set1(a.softcap));
    return z;
}

// c tokens by 16 plain columns from n0, whatever is asked for.
__attribute__((noinline)) void store_plain_any(const LinearArgs& a, const float* tile, int64_t start, int64_t c, int64_t n0) {
    const int64_t n = a.w.n - n0 < 16 ? a.w.n - n0 : 16;
    for (int64_t m = 0; m < c; m++) {
        const int64_t at = (start + m) * a.y_stride + n0;
        F z = load(tile + m * 16);
        if (a.bias) z = z + load_n(a.bias + n0, n);
        z = finish(activate(z, a.activation), a);
        if (a.residual) z = load_n(a.residual + at, n) + z;
        if (n == 16) store(a.y + at, z);
        else store_n(a.y + at, z, n);
    }
}

SIMD bool is_bare(const LinearArgs& a) { return !a.bias && a.scale == 1.0f && a.softcap == 0.0f; }

// Epilogue of C tokens by 16 plain columns from n0.
template <int C> void store_plain(const LinearArgs& a, const float* tile, int64_t start, int64_t n0) {
    if (!is_bare(a) || a.activation != Activation::None || n0 + 16 > a.w.n) return store_plain_any(a, tile, start, C, n0);
    int64_t at = start * a.y_stride + n0;
    if (!a.residual) {
        UNROLL for (int m = 0; m < C; m++, at += a.y_stride) store(a.y + at, load(tile + m * 16));
        return;
    }
    UNROLL for (int m = 0; m < C; m++, at += a.y_stride) store(a.y + at, load(a.residual + at) + load(tile + m * 16));
}

// As store_plain_any, of gated panels.
__attribute__((noinline)) void store_gated_any(const LinearArgs& a, const float* tile, int64_t start, int64_t c, int64_t n0) {
    const int64_t half = a.w.n / 2, n = half - n0 < 8 ? half - n0 : 8;
    float gate_bias[8] = {}, up_bias[8] = {};
    if (a.bias) {
        __builtin_memcpy(gate_bias, a.bias + n0, n * 4);
        __builtin_memcpy(up_bias, a.bias + half + n0, n * 4);
    }
    for (int64_t m = 0; m < c; m += 2) {
        const int64_t other = m + 1 < c ? m + 1 : m;
        F gate = load_halves(tile + m * 16, tile + other * 16);
        F up = load_halves(tile + m * 16 + 8, tile + other * 16 + 8);
        if (a.bias) {
            gate = gate + load_halves(gate_bias, gate_bias);
            up = up + load_halves(up_bias, up_bias);
        }
        F z = finish(activate(gate, a.activation) * up, a);
        if (n == 8 && !a.residual) {
            float* y = a.y + (start + m) * a.y_stride + n0;
            store_halves(y, other == m ? y : y + a.y_stride, z);
            continue;
        }
        float low[8], high[8];
        store_halves(low, high, z);
        for (int64_t t = m; t <= other; t++) {
            const int64_t at = (start + t) * a.y_stride + n0;
            const float* lanes = t == m ? low : high;
            for (int64_t i = 0; i < n; i++) a.y[at + i] = a.residual ? a.residual[at + i] + lanes[i] : lanes[i];
        }
    }
}

template <int C, Activation A> __attribute__((noinline)) void store_pairs(const float* tile, float* y, int64_t stride) {
    UNROLL for (int m = 0; m < C; m += 2) {
        const int other = m + 1 < C ? m + 1 : m;
        const F gate = load_halves(tile + m * 16, tile + other * 16), up = load_halves(tile + m * 16 + 8, tile + other * 16 + 8);
        store_halves(y + m * stride, y + other * stride, activate(gate, A) * up);
    }
}

// Epilogue of gated panels: 8 gate columns meet 8 up columns; two tokens fill a vector.
template <int C> void store_gated(const LinearArgs& a, const float* tile, int64_t start, int64_t n0) {
    float* y = a.y + start * a.y_stride + n0;
    const bool whole = is_bare(a) && !a.residual && n0 + 8 <= a.w.n / 2;
    if (whole && a.activation == Activation::Silu) store_pairs<C, Activation::Silu>(tile, y, a.y_stride);
    else if (whole && a.activation == Activation::GeluTanh) store_pairs<C, Activation::GeluTanh>(tile, y, a.y_stride);
    else store_gated_any(a, tile, start, C, n0);
}

// What an epilogue will touch is asked for before the products are computed: with many tokens its lines have
// left the second-level cache since they were last used, one line a token, too far apart for the hardware.
template <int C> SIMD void prefetch_epilogue(const LinearArgs& a, int64_t start, int64_t column) {
    UNROLL for (int m = 0; m < C; m++) {
        const int64_t at = (start + m) * a.y_stride + column;
        prefetch(a.y + at);
        if (a.residual) prefetch(a.residual + at);
    }
}
