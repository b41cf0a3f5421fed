// Row-wise kernels: norms, activations of a gate, embedding rows, softmax.

SIMD float widen_bf16(uint16_t h) {
    uint32_t x = (uint32_t)h << 16;
    float y;
    __builtin_memcpy(&y, &x, 4);
    return y;
}
SIMD uint16_t narrow_bf16(float value) { // round to nearest, ties to even
    uint32_t x;
    __builtin_memcpy(&x, &value, 4);
    if ((x & 0x7fffffff) > 0x7f800000) return (uint16_t)(x >> 16 | 0x40);
    return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

// Numbers as they lie in memory, by type; vload_as widens VW of them.
struct F16Element { uint16_t bits; };
struct BF16Element { uint16_t bits; };
SIMD V vload_as(const float* p) { return vload(p); }
SIMD V vload_as(const F16Element* p) { return vload_f16((const uint16_t*)p); }
SIMD V vload_as(const BF16Element* p) { return vload_bf16((const uint16_t*)p); }
SIMD float widen_one(float x) { return x; }
SIMD float widen_one(F16Element x) { return widen_f16(x.bits); }
SIMD float widen_one(BF16Element x) { return widen_bf16(x.bits); }

// Sum over k of (x - shift)^2, or of x: four chains of 16 lanes, so the order depends on k alone.
template <bool SQUARE> float sum_row(const float* x, int64_t k, float shift) {
    F chain[4] = {zero(), zero(), zero(), zero()};
    const F s = set1(shift);
    int64_t i = 0;
    for (; i + 64 <= k; i += 64) {
        for (int c = 0; c < 4; c++) {
            F v = load(x + i + 16 * c);
            if (SQUARE) { v = v - s; chain[c] = fma(v, v, chain[c]); }
            else chain[c] = chain[c] + v;
        }
    }
    for (int c = 0; i < k; i += 16, c++) {
        const int64_t n = k - i < 16 ? k - i : 16;
        F v = n == 16 ? load(x + i) : load_n(x + i, n);
        if (SQUARE) {
            v = v - s;
            if (n < 16) { // lanes past the row hold -shift: take them out
                float lanes[16] = {};
                store_n(lanes, v, n);
                v = load(lanes);
            }
            chain[c] = fma(v, v, chain[c]);
        } else chain[c] = chain[c] + v;
    }
    return rsum((chain[0] + chain[1]) + (chain[2] + chain[3]));
}

struct Affine { float shift, factor; }; // y = (x - shift) * factor * gain + bias

Affine row_statistics(const float* x, int64_t k, NormKind kind, float eps) {
    if (kind == NormKind::None) return {.shift = 0.0f, .factor = 1.0f};
    float mean = 0.0f;
    if (kind == NormKind::Layer) mean = sum_row<false>(x, k, 0.0f) / (float)k;
    float variance = sum_row<true>(x, k, mean) / (float)k;
    return {.shift = mean, .factor = 1.0f / __builtin_sqrtf(variance + eps)};
}

SIMD F normalized(F x, F gain, const F* bias, Affine s, NormKind kind) {
    if (kind == NormKind::Layer) x = x - set1(s.shift);
    F y = x * set1(s.factor) * gain;
    return bias ? y + *bias : y;
}

void apply_norm(const float* x, float* y, int64_t k, Affine s, NormKind kind, const float* gain, const float* bias) {
    for (int64_t i = 0; i < k; i += 16) {
        const int64_t n = k - i < 16 ? k - i : 16;
        F b = bias ? load_n(bias + i, n) : zero();
        store_n(y + i, normalized(load_n(x + i, n), load_n(gain + i, n), bias ? &b : nullptr, s, kind), n);
    }
}

void norm_row(const float* x, float* y, int64_t k, NormKind kind, const float* gain, const float* bias, float eps) {
    apply_norm(x, y, k, row_statistics(x, k, kind, eps), kind, gain, bias);
}

// y = sigmoid(gate) * x
void gate_row(const float* x, float gate, float* y, int64_t count) {
    float lanes[16];
    store(lanes, sigmoid(set1(gate)));
    for (int64_t i = 0; i < count; i += 16) {
        const int64_t n = count - i < 16 ? count - i : 16;
        store_n(y + i, load_n(x + i, n) * set1(lanes[0]), n);
    }
}

void add_rows(const float* x, const float* y, float* z, int64_t count) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) store(z + i, load(x + i) + load(y + i));
    for (; i < count; i++) z[i] = x[i] + y[i];
}

void axpy_row(const float* x, float factor, float* y, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) {
        const int64_t n = count - i < 16 ? count - i : 16;
        store_n(y + i, fma(set1(factor), load_n(x + i, n), load_n(y + i, n)), n);
    }
}

void scale_row(const float* x, float factor, float* y, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) {
        const int64_t n = count - i < 16 ? count - i : 16;
        store_n(y + i, load_n(x + i, n) * set1(factor), n);
    }
}

// Ascending, one element after another: a router's few dozen logits.
void softmax_row(const float* x, float* p, int64_t count) {
    float top = x[0];
    for (int64_t i = 1; i < count; i++) top = x[i] > top ? x[i] : top;
    float sum = 0.0f;
    for (int64_t i = 0; i < count; i++) sum += p[i] = exp2_negative((x[i] - top) * kLog2e);
    for (int64_t i = 0; i < count; i++) p[i] /= sum;
}

void sigmoid_row(const float* x, float* p, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) {
        const int64_t n = count - i < 16 ? count - i : 16;
        store_n(p + i, sigmoid(load_n(x + i, n)), n);
    }
}

SIMD float table_entry(const Matrix& w, const uint8_t* table, int64_t lane) {
    return w.wide ? ((const float*)table)[lane] : widen_f16(((const uint16_t*)table)[lane]);
}
// A scale of narrow U4 that may be an integer, in its row's unit (types.h).
SIMD float scale_entry(const Matrix& w, const float* units, const uint8_t* table, int64_t lane) {
    return units ? (float)((const int16_t*)table)[integer_scale_at(lane)] * units[lane] : table_entry(w, table, lane);
}

// Element j of row `lane` in a block: of nibbles, and with U5's fifth bits.
SIMD int nibble_entry(const uint8_t* block, int64_t lane, int64_t j) {
    const uint8_t byte = block[(j % 16 / 4 * kPanel + lane) * 4 + j % 4];
    return j < 16 ? byte & 15 : byte >> 4;
}
SIMD int u5_entry(const uint8_t* block, int64_t lane, int64_t j) {
    return nibble_entry(block, lane, j) | (block[256 + lane * 4 + j % 4] >> j / 4 & 1) << 4;
}
SIMD int cut_entry(const uint8_t* block, const uint8_t* low, int64_t lane, int64_t j) {
    const int others = nibble_entry(low, lane, j);
    return ((others & 8) << 4 | nibble_entry(block, lane, j) << 3 | (others & 7)) - 128;
}

// Element j of row `lane` in a block of K6, and its half's step.
SIMD int six_bits_entry(const uint8_t* block, int64_t lane, int64_t j) {
    const uint8_t* half = block + j / 16 * 192;
    const uint8_t byte = half[(j % 8 / 4 * kPanel + lane) * 4 + j % 4], pairs = half[128 + lane * 4 + j % 4];
    return (j % 16 < 8 ? byte & 15 : byte >> 4) | (pairs >> j % 16 / 4 * 2 & 3) << 4;
}
// Step i of a block whose layout has bytes of them.
SIMD float whole_step(const Matrix& w, const uint8_t* block, int64_t lane, int64_t i) {
    return (float)(int8_t)block[value_bytes(w.layout) - step_bytes(w.layout) + i * kPanel + lane];
}

// Elements of U2 and U3, and their step.
SIMD int few_bits_entry(const uint8_t* block, int64_t lane, int64_t j) {
    return block[(j % 8 / 4 * kPanel + lane) * 4 + j % 4] >> j / 8 * 2 & 3;
}
SIMD int third_bit_entry(const uint8_t* block, int64_t lane, int64_t j) { return (block[128 + lane * 4 + j % 4] >> j / 4 & 1) << 2; }
SIMD int step_entry(const Matrix& w, const uint8_t* block, int64_t lane, int64_t j) {
    return block[value_bytes(w.layout) - 2 * kPanel + lane * 2 + j / 16];
}

// One row of a packed matrix, dequantized as kernels/weight.py does it, times factor.
void embed_row(const Matrix& w, int64_t row, float factor, float* all) {
    int64_t lane = row % kPanel, p = row / kPanel;
    if (w.gated) {
        const int64_t half = w.n / 2, r = row % half;
        p = r / 8;
        lane = r % 8 + (row < half ? 0 : 8);
    }
    const uint8_t* panel = w.data + p * w.panel_bytes;
    const float* units = units_of(w, p);
    const uint8_t *block = panel, *scales = panel;
    for (int64_t k = 0; k < w.k; k++) {
        const int64_t at = k * kPanel + lane, j = k % kBlock;
        if (j == 0) { // each is found by a division
            block = panel + values_at(w, k / kBlock);
            scales = panel + tables_at(w, k / kBlock);
        }
        float* y = all + (w.order ? w.order[k] - k : 0);
        switch (w.layout) {
        case Layout::F32: y[k] = ((const float*)panel)[at]; break;
        case Layout::F16: y[k] = widen_f16(((const uint16_t*)panel)[at]); break;
        case Layout::BF16: y[k] = widen_bf16(((const uint16_t*)panel)[at]); break;
        case Layout::F8:
        case Layout::NF4:
        case Layout::FP4: y[k] = coded_entry(w, panel, lane, k); break;
        case Layout::S8:
        case Layout::S8By16: {
            const int8_t q = (int8_t)block[(j / 4 * kPanel + lane) * 4 + j % 4];
            const int64_t half = w.layout == Layout::S8By16 ? j / 16 : 0;
            y[k] = (float)q * table_entry(w, scales + half * table_bytes(w.wide), lane);
            if (w.minima) y[k] += table_entry(w, scales + table_bytes(w.wide), lane);
            break;
        }
        case Layout::U2: {
            const int step = step_entry(w, block, lane, j);
            const float s = table_entry(w, scales, lane) * (float)(step & 15);
            y[k] = (float)few_bits_entry(block, lane, j) * s + table_entry(w, scales + table_bytes(w.wide), lane) * (float)(step >> 4);
            break;
        }
        case Layout::U3: {
            const float s = table_entry(w, scales, lane) * (float)(step_entry(w, block, lane, j) - 32);
            y[k] = (float)(few_bits_entry(block, lane, j) + third_bit_entry(block, lane, j) - 4) * s;
            break;
        }
        case Layout::K4:
        case Layout::K5: {
            const int q = w.layout == Layout::K5 ? u5_entry(block, lane, j) : nibble_entry(block, lane, j);
            const float s = table_entry(w, scales, lane) * whole_step(w, block, lane, 0);
            y[k] = (float)q * s + table_entry(w, scales + table_bytes(w.wide), lane) * whole_step(w, block, lane, 1);
            break;
        }
        case Layout::K6: y[k] = (float)(six_bits_entry(block, lane, j) - 32) * (table_entry(w, scales, lane) * whole_step(w, block, lane, j / 16)); break;
        case Layout::C4: y[k] = (float)kIQ4[nibble_entry(block, lane, j)] * (table_entry(w, scales, lane) * whole_step(w, block, lane, 0)); break;
        case Layout::S8Cut: {
            const uint8_t* low = w.low + (p * (w.k / kBlock) + k / kBlock) * kLowBytes;
            y[k] = (float)cut_entry(block, low, lane, j) * scale_entry(w, units, scales, lane);
            break;
        }
        case Layout::U4:
        case Layout::U5: {
            const int q = w.layout == Layout::U5 ? u5_entry(block, lane, j) : nibble_entry(block, lane, j);
            const float s = scale_entry(w, units, scales, lane);
            if (w.zeros) y[k] = (float)(q - scales[table_bytes(w.wide) + lane]) * s;
            else y[k] = w.minima ? (float)q * s + table_entry(w, scales + table_bytes(w.wide), lane) : (float)(q + offset_of(w.layout)) * s;
            break;
        }
        }
    }
    if (factor != 1.0f) scale_row(all, factor, all, w.k);
}
