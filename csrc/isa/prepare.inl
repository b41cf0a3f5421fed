// Activations to panels: norm, then rounding to int8 per block of 32 (or a plain copy for floats).

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

// Blocks of a row that go through each step before the next one: a block's own way from its largest |x| over two
// divisions to its integers is long, and waiting for it costs more than reading x twice.
enum { kBlocksTogether = 32 };
struct Rounding {
    alignas(64) int32_t top[kBlocksTogether]; // bits of the largest |x|
    float d[kBlocksTogether], inverse[kBlocksTogether];
    int32_t total[kBlocksTogether], half[kBlocksTogether]; // sums of all q, of the first 16
};

// x of `count` blocks from block `first` on: themselves, or normalized to y.
SIMD const float* normalized_blocks(const PrepareArgs& a, const float* x, int64_t first, int64_t count, Affine s, float* y) {
    x += first * kBlock;
    if (a.norm == NormKind::None) return x;
    const float *gain = a.gain + first * kBlock, *bias = a.bias ? a.bias + first * kBlock : nullptr;
    for (int64_t i = 0; i < count * kBlock; i += 16) {
        F b;
        if (bias) b = load(bias + i);
        store(y + i, normalized(load(x + i), load(gain + i), bias ? &b : nullptr, s, a.norm));
    }
    return y;
}

// A NaN or an infinity in a block makes its d NaN, and through it every output of the row.
SIMD void find_scales(const float* x, int64_t count, Rounding& r) {
    for (int64_t i = 0; i < count; i += 4) {
        I top[4];
        UNROLL for (int64_t j = 0; j < 4; j++) {
            const float* at = x + (i + j < count ? i + j : i) * kBlock;
            // As integers, |NaN| > |inf| > every |x|: one maximum finds both.
            top[j] = maxi(bits(abs(load(at))), bits(abs(load(at + 16))));
        }
        rmaxi4(r.top + i, top);
    }
    for (int64_t i = 0; i < count; i += 4) {
        Four<int32_t> top;
        __builtin_memcpy(&top, r.top + i, 16);
        const Four<int32_t> bad = top >= 0x7f800000; // then a NaN
        const Four<float> d = (Four<float>)(((Four<int32_t>)((Four<float>)top / 127.0f) & ~bad) | (bad & 0x7fc00000));
        const Four<float> inverse = 1.0f / d;
        __builtin_memcpy(r.d + i, &d, 16);
        __builtin_memcpy(r.inverse + i, &inverse, 16);
    }
}

// q = round_half_even(x / d) of a block, d being max|x| / 127; q 0 where d is 0 or NaN.
SIMD void round_block(const float* x, float d, float inverse, I* q) {
    const F x0 = load(x), x1 = load(x + 16), t0 = x0 * set1(inverse), t1 = x1 * set1(inverse);
    F r0 = round_even(t0), r1 = round_even(t1);
    // The product is within 3e-5 of the quotient, so only near a half can they round differently, and
    // where 1 / d overflows. Then divide, as the specification does.
    const F off = max(abs(t0 - r0), abs(t1 - r1));
    if (__builtin_expect(any(less(set1(0.49996f), off)) | !(d > 1e-37f), 0)) {
        const bool usable = d > 0.0f; // neither 0 nor NaN
        r0 = usable ? round_even(x0 / set1(d)) : zero();
        r1 = usable ? round_even(x1 / set1(d)) : zero();
    }
    q[0] = to_int(r0), q[1] = to_int(r1);
}

// The integers of `count` blocks, and their sums. Four at once share the reductions.
template <bool ALONE> SIMD void round_blocks(const float* x, int64_t count, int64_t c, int8_t* q, Rounding& r) {
    for (int64_t i = 0; i < count; i += 4) {
        I total[4], half[4];
        UNROLL for (int64_t j = 0; j < 4; j++) {
            const int64_t b = i + j < count ? i + j : i;
            I rounded[2];
            round_block(x + b * kBlock, r.d[b], r.inverse[b], rounded);
            total[j] = addi(rounded[0], rounded[1]);
            half[j] = rounded[0];
            int8_t* to = q + b * kBlock * c;
            if (ALONE) {
                store_s8(to, rounded[0]);
                store_s8(to + 16, rounded[1]);
                continue;
            }
            alignas(32) int32_t quads[8];
            store_s8((int8_t*)quads, rounded[0]);
            store_s8((int8_t*)quads + 16, rounded[1]);
            UNROLL for (int n = 0; n < 8; n++, to += c * 4) __builtin_memcpy(to, quads + n, 4);
        }
        rsumi4(r.total + i, total);
        rsumi4(r.half + i, half);
    }
}

template <bool ALONE> void prepare_quantized(const PrepareArgs& a, const float* x, int64_t token, int64_t start, int64_t c, float* scratch) {
    const int64_t blocks = a.to.k / kBlock, m = token - start, parts = a.to.parts;
    const Affine s = row_statistics(x, a.to.k, a.norm, a.eps);
    Rounding r;
    for (int64_t first = 0; first < blocks; first += kBlocksTogether) {
        const int64_t left = blocks - first, count = left < kBlocksTogether ? left : (int64_t)kBlocksTogether;
        const int64_t at = (start * blocks + first * c) + m;
        const float* y = normalized_blocks(a, x, first, count, s, scratch);
        find_scales(y, count, r);
        round_blocks<ALONE>(y, count, c, a.to.q + (start * blocks + first * c) * kBlock + m * 4, r);
        int32_t* sum = a.to.sum + (start * blocks + first * c) * parts + m;
        for (int64_t i = 0; i < count; i++) {
            a.to.d[at + i * c] = r.d[i];
            a.to.u[at + i * c] = r.d[i] * (float)r.total[i];
            if (parts == 1) {
                sum[i * c] = start_of(r.total[i], a.to.offset);
                continue;
            }
            sum[2 * i * c] = r.half[i] * a.to.offset;
            sum[(2 * i + 1) * c] = (r.total[i] - r.half[i]) * a.to.offset;
        }
    }
}

void prepare_float(const PrepareArgs& a, const float* x, int64_t token, int64_t start, int64_t c, float* scratch) {
    if (a.norm != NormKind::None) {
        norm_row(x, scratch, a.to.k, a.norm, a.gain, a.bias, a.eps);
        x = scratch;
    }
    float* panel = a.to.x + start * a.to.k + (token - start);
    for (int64_t k = 0; k < a.to.k; k++) panel[k * c] = x[k];
}

// A row in the weight's order of columns, its norm taken first: blocks are of columns that share weights' scales.
SIMD const float* ordered(const PrepareArgs& given, const float* x, float* scratch) {
    const int64_t k = given.to.k;
    if (given.norm != NormKind::None) {
        norm_row(x, scratch + k, k, given.norm, given.gain, given.bias, given.eps);
        x = scratch + k;
    }
    for (int64_t i = 0; i < k; i++) scratch[i] = x[given.order[i]];
    return scratch;
}

void prepare_rows(const PrepareArgs& given, int64_t begin, int64_t end, float* scratch) {
    PrepareArgs a = given;
    if (given.order) a.norm = NormKind::None;
    for (int64_t token = begin; token < end; token++) {
        const float* x = a.x + (a.rows ? a.rows[token] : token) * a.to.k;
        if (given.order) x = ordered(given, x, scratch);
        const int64_t tile = tile_of(a.to.tiles, token);
        const int64_t start = tile_start(a.to.tiles, tile), c = tile_size(a.to.tiles, tile);
        if (a.to.q && c == 1) prepare_quantized<true>(a, x, token, start, c, scratch);
        else if (a.to.q) prepare_quantized<false>(a, x, token, start, c, scratch);
        else prepare_float(a, x, token, start, c, scratch);
    }
}
