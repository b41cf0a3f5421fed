// S8Cut's parts put together again: what reads whole numbers reads them as S8, or as u8 where its products shift them to that
// (SHIFTED_S8), with f32 scales; and what reads their five high bits as U5.

#if defined(__AVX512BW__)
typedef __m512i Bytes;
template <int N> SIMD Bytes shift_left(Bytes x) { return _mm512_slli_epi16(x, N); }
template <int N> SIMD Bytes shift_right(Bytes x) { return _mm512_srli_epi16(x, N); }
SIMD Bytes choose(uint8_t mask, Bytes yes, Bytes no) { return _mm512_ternarylogic_epi32(yes, no, _mm512_set1_epi8((char)mask), 0xe4); }
// Of others' nibbles bits 0 to 2 in place, of `top` bit 7, and the middle bits in place; whatever surrounds them.
SIMD Bytes join(Bytes middle, Bytes others, Bytes top) { return choose(0x78, middle, choose(7, others, top)); }
#elif defined(__AVX2__)
typedef __m256i Bytes;
template <int N> SIMD Bytes shift_left(Bytes x) { return _mm256_slli_epi16(x, N); }
template <int N> SIMD Bytes shift_right(Bytes x) { return _mm256_srli_epi16(x, N); }
SIMD Bytes join(Bytes middle, Bytes others, Bytes) { // a nibble of the others has bit 7 too
    const __m128i high = _mm_set1_epi64x(SHIFTED_S8 ? 0 : (int64_t)0x8080808080808080u), low = _mm_set1_epi64x(SHIFTED_S8 ? (int64_t)0x8080808080808080u : 0);
    const __m128i both = _mm_or_si128(_mm_unpacklo_epi64(high, low), _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7));
    const Bytes rest = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(both), _mm256_and_si256(others, _mm256_set1_epi8(15)));
    return _mm256_or_si256(rest, _mm256_and_si256(middle, _mm256_set1_epi8(0x78)));
}
#else
typedef uint16_t Bytes __attribute__((vector_size(16))); // pairs of them
template <int N> SIMD Bytes shift_left(Bytes x) { return x << N; }
template <int N> SIMD Bytes shift_right(Bytes x) { return x >> N; }
SIMD Bytes join(Bytes middle, Bytes others, Bytes top) {
    return ((others & 0x0707) | (top & 0x8080) | (middle & 0x7878)) ^ 0x8080;
}
#endif
SIMD Bytes load_bytes(const uint8_t* p) {
    Bytes x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
SIMD void store_bytes(uint8_t* p, Bytes x) { __builtin_memcpy(p, &x, sizeof x); }

enum : int64_t { kJoinedBytes = 512 + 64, kStream = 6144 }; // of a block; asked for ahead of use

SIMD void join_scales(const Matrix& w, [[maybe_unused]] const float* units, const uint8_t* table, float* to) {
#if INTEGER_SCALES
    if (units) {
        const __m256i t = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i*)table), 0xd8); // integer_scale_at
        const I rows = {_mm256_cvtepi16_epi32(_mm256_castsi256_si128(t)), _mm256_cvtepi16_epi32(_mm256_extracti128_si256(t, 1))};
        return store(to, to_float(rows) * load(units));
    }
#endif
    store(to, w.wide ? load((const float*)table) : load_f16((const uint16_t*)table));
}

// STREAM: for one token, when memory is all that there is to wait for.
template <bool STREAM> __attribute__((noinline)) void join_panel(const Matrix& w, int64_t p, uint8_t* to) {
    const int64_t blocks = w.k / kBlock;
    const uint8_t *high = w.data + p * w.panel_bytes, *low = w.low + p * blocks * kLowBytes;
    const float* units = units_of(w, p);
    for (int64_t b = 0; b < blocks; b++, high += w.block_bytes, low += kLowBytes, to += kJoinedBytes) {
        if (STREAM) {
            prefetch_bytes(high + kStream, w.block_bytes);
            prefetch_bytes(low + kStream, kLowBytes);
        }
        UNROLL for (int64_t i = 0; i < 256; i += (int64_t)sizeof(Bytes)) {
            const Bytes middle = load_bytes(high + i), others = load_bytes(low + i);
            store_bytes(to + i, join(shift_left<3>(middle), others, shift_left<4>(others)));
            store_bytes(to + 256 + i, join(shift_right<1>(middle), shift_right<4>(others), others));
        }
        join_scales(w, units, high + value_bytes(w.layout), (float*)(to + 512));
    }
}

// A panel of U5, scales as they are.
[[maybe_unused]] __attribute__((noinline)) void join_high_bits(const Matrix& w, int64_t p, uint8_t* to) {
    const int64_t blocks = w.k / kBlock, table = table_bytes(w.wide);
    const uint8_t *high = w.data + p * w.panel_bytes, *fifth = w.fifth + p * blocks * kFifthBytes;
    for (int64_t b = 0; b < blocks; b++, high += w.block_bytes, fifth += kFifthBytes, to += 320 + table) {
        __builtin_memcpy(to, high, 256);
        __builtin_memcpy(to + 256, fifth, kFifthBytes);
        if (w.wide) __builtin_memcpy(to + 320, high + 256, 64);
        else __builtin_memcpy(to + 320, high + 256, 32);
    }
}

// One row's product with a row of activations: what linear.inl computes for S8, in the same order.
float row_product(const Matrix& w, int64_t row, const int8_t* q, const float* d) {
    typedef uint32_t Words __attribute__((vector_size(16)));
    const int64_t p = row / kPanel, lane = row % kPanel, blocks = w.k / kBlock;
    const uint8_t *high = w.data + p * w.panel_bytes, *low = w.low + p * blocks * kLowBytes;
    const float* units = units_of(w, p);
    F z = zero();
    for (int64_t b = 0; b < blocks; b++, high += w.block_bytes, low += kLowBytes, q += kBlock) {
        uint32_t words[2][4]; // of the middle bits, of the others
        for (int j = 0; j < 4; j++) {
            __builtin_memcpy(&words[0][j], high + (j * kPanel + lane) * 4, 4);
            __builtin_memcpy(&words[1][j], low + (j * kPanel + lane) * 4, 4);
        }
        Words middle, others;
        __builtin_memcpy(&middle, words[0], 16);
        __builtin_memcpy(&others, words[1], 16);
        const Words first = ((middle << 3 & 0x78787878) | (others & 0x07070707) | (others << 4 & 0x80808080)) ^ 0x80808080;
        const Words second = ((middle >> 1 & 0x78787878) | (others >> 4 & 0x07070707) | (others & 0x80808080)) ^ 0x80808080;
        int8_t v[kBlock];
        __builtin_memcpy(v, &first, 16);
        __builtin_memcpy(v + 16, &second, 16);
        int32_t dot = 0;
        for (int i = 0; i < kBlock; i++) dot += v[i] * q[i];
        z = fma(set1((float)dot), set1(scale_entry(w, units, high + value_bytes(w.layout), lane) * d[b]), z);
    }
    return first_lane(z);
}
