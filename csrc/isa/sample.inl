// The passes of sample_passes.h. sampling/elementary.py and distribution.py have the same steps in the
// same order, each rounded by itself: no fused multiply-adds here, so all instruction sets and NumPy
// give the same bits.

typedef double D4 __attribute__((vector_size(32)));
typedef float F4 __attribute__((vector_size(16)));

const float kLowestExponent = -87.33f;

SIMD F exp_sampled(F x) {
    const F lowest = set1(kLowestExponent), bounded = max(x, lowest);
    const F n = round_even(bounded * set1(1.44269504f));
    F r = bounded - n * set1(0.693145752f);
    r = r - n * set1(1.42860677e-6f);
    F p = r * set1(1.393366939e-3f);
    p = (p + set1(8.363192819e-3f)) * r;
    p = (p + set1(4.166646474e-2f)) * r;
    p = (p + set1(1.666657690e-1f)) * r;
    p = (p + set1(5.000000013e-1f)) * (r * r);
    p = (p + r) + set1(1.0f);
    p = p * from_bits(shl<23>(addi(to_int(n), seti(127))));
    return select(less(x, lowest), zero(), p);
}

// The last 1 to 15 tokens of a row, other lanes filled.
SIMD F load_filled(const float* p, int64_t n, float fill) {
    float lanes[16];
    for (int64_t i = 0; i < 16; i++) lanes[i] = i < n ? p[i] : fill;
    return load(lanes);
}
SIMD F load_row(const float* p, int64_t left, float fill) { return left >= 16 ? load(p) : load_filled(p, left, fill); }

void sample_maxima(const float* z, int64_t count, float* maxima) {
    const float infinity = __builtin_inff();
    for (int64_t start = 0; start < count; start += kChunk, maxima++) {
        const int64_t size = count - start < kChunk ? count - start : kChunk;
        F largest = set1(-infinity), broken = zero();
        for (int64_t i = 0; i < size; i += 16) {
            F v = load_row(z + start + i, size - i, -infinity);
            broken = select(less(v, set1(infinity)), broken, set1(1.0f));
            largest = max(largest, v);
        }
        *maxima = rmax(broken) > 0.0f ? __builtin_nanf("") : rmax(largest);
    }
}

// Where a bit is set: z + x if ADDS. Where it is not: x, unless ADDS. What all bits of a word leave as it is, is not touched.
template <bool ADDS> SIMD void by_bits(float* z, const uint32_t* bits, float x, int64_t count) {
    int32_t bit[16];
    for (int i = 0; i < 16; i++) bit[i] = 1 << i;
    const I bits16 = loadi(bit);
    const F other = set1(x);
    for (int64_t start = 0; start < count; start += 32) {
        const uint32_t word = bits[start / 32];
        if (word == (ADDS ? 0u : 0xffffffffu)) continue;
        for (int64_t half = 0; half < 2 && start + 16 * half < count; half++) {
            float* at = z + start + 16 * half;
            const int64_t n = count - start - 16 * half < 16 ? count - start - 16 * half : 16;
            const I on = andi(seti((int32_t)(word >> (16 * half) & 0xffff)), bits16);
            const F was = n == 16 ? load(at) : load_n(at, n);
            const F v = ADDS ? select(lessi(seti(0), on), was + other, was) : select(lessi(seti(0), on), was, other);
            if (n == 16) store(at, v);
            else store_n(at, v, n);
        }
    }
}

void sample_mask(float* z, const uint32_t* mask, int64_t count) { by_bits<false>(z, mask, -__builtin_inff(), count); }
void sample_boost(float* z, const uint32_t* bits, float delta, int64_t count) { by_bits<true>(z, bits, delta, count); }

// A chunk at a time: what is written is still at hand where its maximum is sought.
void sample_lift(const float* z, const uint32_t* bits, float delta, int64_t count, float* lifted, float* maxima) {
    for (int64_t start = 0; start < count; start += kChunk, maxima++) {
        const int64_t size = count - start < kChunk ? count - start : kChunk;
        __builtin_memcpy(lifted + start, z + start, (size_t)size * sizeof(float));
        sample_boost(lifted + start, bits + start / 32, delta, size);
        sample_maxima(lifted + start, size, maxima);
    }
}

// Lanes added up token after token, then by halves.
double sum_lanes(const float* w) {
    D4 lane[4] = {};
    for (int i = 0; i < kChunk; i += kSumLanes) {
        UNROLL
        for (int j = 0; j < 4; j++) {
            F4 four;
            __builtin_memcpy(&four, w + i + 4 * j, sizeof four);
            lane[j] += __builtin_convertvector(four, D4);
        }
    }
    const D4 four = (lane[0] + lane[2]) + (lane[1] + lane[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

void sample_weights(const float* z, const float* maxima, int64_t count, float peak, float inverse, float* w,
                    double* sums) {
    const F top = set1(peak), factor = set1(inverse);
    for (int64_t start = 0; start < count; start += kChunk, maxima++, sums++) {
        const int64_t size = count - start < kChunk ? count - start : kChunk;
        if ((*maxima - peak) * inverse < kLowestExponent) { // then all are
            *sums = 0.0;
            continue;
        }
        float chunk[kChunk] = {};
        float* to = size == kChunk ? w + start : chunk;
        for (int64_t i = 0; i < size; i += 16)
            store(to + i, exp_sampled((load_row(z + start + i, size - i, -__builtin_inff()) - top) * factor));
        *sums = sum_lanes(to);
        if (size < kChunk) __builtin_memcpy(w + start, chunk, (size_t)size * sizeof(float));
    }
}

void sample_sums(const float* z, const float* maxima, int64_t count, double* sums) {
    for (int64_t start = 0; start < count; start += kChunk, maxima++, sums++) {
        const int64_t size = count - start < kChunk ? count - start : kChunk;
        *sums = 0.0;
        if (*maxima == -__builtin_inff()) continue;
        float chunk[kChunk] = {};
        const F top = set1(*maxima);
        for (int64_t i = 0; i < size; i += 16)
            store(chunk + i, exp_sampled(load_row(z + start + i, size - i, -__builtin_inff()) - top));
        *sums = sum_lanes(chunk);
    }
}

void sample_exp(const float* z, int64_t count, float peak, float inverse, float* w) {
    for (int64_t i = 0; i < count; i += 16) {
        const F y = exp_sampled((load_row(z + i, count - i, -__builtin_inff()) - set1(peak)) * set1(inverse));
        if (count - i >= 16) store(w + i, y);
        else store_n(w + i, y, count - i);
    }
}

// Appends first + lane of those of 16 lanes that are at least t, without a branch; writes 16 numbers.
#if defined(__AVX512F__)
SIMD int64_t append_lanes(F x, F t, int32_t first, int32_t* ids) {
    const __mmask16 found = _mm512_cmp_ps_mask(x, t, _CMP_GE_OQ);
    const I numbers = _mm512_add_epi32(_mm512_set1_epi32(first), loadi(kLanes));
    _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(found, numbers));
    return __builtin_popcount(found);
}
#elif defined(__AVX2__)
struct LaneTable { // for each set of 8 lanes its members, ascending
    uint8_t lanes[256][8];
};
constexpr LaneTable lane_table() {
    LaneTable table{};
    for (int set = 0; set < 256; set++)
        for (int lane = 0, at = 0; lane < 8; lane++)
            if (set >> lane & 1) table.lanes[set][at++] = (uint8_t)lane;
    return table;
}
constexpr LaneTable kLaneTable = lane_table();
SIMD int64_t append_half(__m256 x, __m256 t, int32_t first, int32_t* ids) {
    const int found = _mm256_movemask_ps(_mm256_cmp_ps(x, t, _CMP_GE_OQ));
    const __m256i lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)kLaneTable.lanes[found]));
    _mm256_storeu_si256((__m256i*)ids, _mm256_add_epi32(lanes, _mm256_set1_epi32(first)));
    return __builtin_popcount((unsigned)found);
}
SIMD int64_t append_lanes(F x, F t, int32_t first, int32_t* ids) {
    const int64_t low = append_half(x.a, t.a, first, ids);
    return low + append_half(x.b, t.b, first + 8, ids + low);
}
#else
SIMD int64_t append_lanes(F x, F t, int32_t first, int32_t* ids) {
    int64_t found = 0;
    for (int i = 0; i < 16; i++) {
        ids[found] = first + i;
        found += x[i] >= t[i];
    }
    return found;
}
#endif

int64_t sample_at_least(const float* x, int64_t count, float threshold, int32_t first, int32_t* ids) {
    const F t = set1(threshold);
    int64_t found = 0;
    for (int64_t i = 0; i < count; i += 16)
        found += append_lanes(load_row(x + i, count - i, -__builtin_inff()), t, first + (int32_t)i, ids + found);
    return found;
}

const SamplePasses kSamplePasses = {
    .maxima = sample_maxima,
    .mask = sample_mask,
    .boost = sample_boost,
    .lift = sample_lift,
    .weights = sample_weights,
    .sums = sample_sums,
    .exp = sample_exp,
    .at_least = sample_at_least,
    .green = sample_green,
};
