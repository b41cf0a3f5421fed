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
enum { kBlocksTogether = 32, kSpare = 3 }; // spare: reductions write four results
struct Rounding {
    alignas(64) int32_t top[kBlocksTogether + kSpare]; // bits of the largest |x|
    float d[kBlocksTogether + kSpare], inverse[kBlocksTogether + kSpare];
    int32_t total[kBlocksTogether + kSpare], half[kBlocksTogether + kSpare]; // sums of all q, of the first 16
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

// N blocks' largest |x|.
template <int N> SIMD void find_tops(const float* x, int32_t* to) {
    I top[4];
    UNROLL for (int j = 0; j < 4; j++) {
        const float* at = x + j % N * kBlock;
        // As integers, |NaN| > |inf| > every |x|: one maximum finds both.
        top[j] = maxi(bits(abs(load(at))), bits(abs(load(at + 16))));
    }
    rmaxi4(to, top);
}

// A NaN or an infinity in a block makes its d NaN, and through it every output of the row.
SIMD void find_scales(const float* x, int64_t count, Rounding& r) {
    int64_t b = 0;
    for (; b + 4 <= count; b += 4) find_tops<4>(x + b * kBlock, r.top + b);
    for (; b < count; b++) find_tops<1>(x + b * kBlock, r.top + b);
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

// The integers of N blocks from block b on, and their sums; with HALVES also those of their first 16 columns. C is how many
// tokens share the panel, where the compiler may know it: then it knows places within the panel, too. 0: c tells.
template <int N, int C, bool HALVES> SIMD void round_some(const float* x, int64_t b, int64_t c, int8_t* q, Rounding& r) {
    if (C) c = C;
    x += b * kBlock, q += b * kBlock * c;
    I total[4], half[4];
    UNROLL for (int j = 0; j < 4; j++) {
        if (j >= N) {
            total[j] = total[0], half[j] = half[0];
            continue;
        }
        I rounded[2];
        round_block(x + j * kBlock, r.d[b + j], r.inverse[b + j], rounded);
        total[j] = addi(rounded[0], rounded[1]);
        half[j] = rounded[0];
        int8_t* to = q + j * kBlock * c;
        if (C == 1) {
            store_s8(to, rounded[0]);
            store_s8(to + 16, rounded[1]);
            continue;
        }
        alignas(32) int32_t quads[8];
        store_s8((int8_t*)quads, rounded[0]);
        store_s8((int8_t*)quads + 16, rounded[1]);
        UNROLL for (int n = 0; n < 8; n++) __builtin_memcpy(to + n * c * 4, quads + n, 4);
    }
    rsumi4(r.total + b, total);
    if (HALVES) rsumi4(r.half + b, half);
}

// The integers of `count` blocks, four at once, which share the reductions.
template <int C, bool HALVES> SIMD void round_blocks(const float* x, int64_t count, int64_t c, int8_t* q, Rounding& r) {
    int64_t b = 0;
    for (; b + 4 <= count; b += 4) round_some<4, C, HALVES>(x, b, c, q, r);
    for (; b < count; b++) round_some<1, C, HALVES>(x, b, c, q, r);
}

// `count` blocks of token m of a panel. at: what comes before them in that panel and in the panels before, in blocks.
template <int C> SIMD void prepare_blocks(const PrepareArgs& a, const float* y, int64_t at, int64_t m, int64_t count, int64_t c, Rounding& r) {
    if (C) c = C;
    const int64_t parts = a.to.parts;
    int8_t* q = a.to.q + at * kBlock + m * 4;
    int32_t* sum = a.to.sum + at * parts + m;
    float *d = a.to.d + at + m, *u = a.to.u + at + m;
    if (parts == 1) round_blocks<C, false>(y, count, c, q, r);
    else round_blocks<C, true>(y, count, c, q, r);
    for (int64_t i = 0; i < count; i++) {
        d[i * c] = r.d[i];
        u[i * c] = r.d[i] * (float)r.total[i];
        if (parts == 1) {
            sum[i * c] = start_of(r.total[i], a.to.offset);
            continue;
        }
        sum[2 * i * c] = r.half[i] * a.to.offset;
        sum[(2 * i + 1) * c] = (r.total[i] - r.half[i]) * a.to.offset;
    }
}

template <int C> void prepare_quantized(const PrepareArgs& a, const float* x, int64_t token, int64_t start, int64_t c, float* scratch) {
    if (C) c = C;
    const int64_t blocks = a.to.k / kBlock;
    const Affine s = row_statistics(x, a.to.k, a.norm, a.eps);
    Rounding r;
    for (int64_t first = 0; first < blocks; first += kBlocksTogether) {
        const int64_t left = blocks - first, count = left < kBlocksTogether ? left : (int64_t)kBlocksTogether;
        const float* y = normalized_blocks(a, x, first, count, s, scratch);
        find_scales(y, count, r);
        prepare_blocks<C>(a, y, start * blocks + first * c, token - start, count, c, r);
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
        if (token + 1 < end && !given.order) { // half of what it reads another core has written
            const float* next = a.x + (a.rows ? a.rows[token + 1] : token + 1) * a.to.k;
            for (int64_t i = 0; i < a.to.k; i += 16) prefetch(next + i);
        }
        const int64_t tile = tile_of(a.to.tiles, token);
        const int64_t start = tile_start(a.to.tiles, tile), c = tile_size(a.to.tiles, tile);
        if (a.to.q && c == 1) prepare_quantized<1>(a, x, token, start, c, scratch);
        else if (a.to.q && c == LARGEST_TILE_INT8) prepare_quantized<LARGEST_TILE_INT8>(a, x, token, start, c, scratch);
        else if (a.to.q) prepare_quantized<0>(a, x, token, start, c, scratch);
        else prepare_float(a, x, token, start, c, scratch);
    }
}
