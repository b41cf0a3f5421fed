// Rows of integer pages, and queries that meet them: integers times one factor for the row.
//
// Attention adds their products in 32 bits (attention_int.inl). That no sum can overflow follows from how
// rows are rounded, for d and dv <= 1024:
//
//   scores  A key and a query have a Euclidean norm of at most 46,000 + 16 (rounding moves each of d
//           elements by half a unit at most) and elements of at most 32,767. By Cauchy and Schwarz the sum
//           over any part of the dimensions is at most 46,016^2 = 2,117,472,256 < 2^31. An int8 key's norm
//           is at most 127 * 32, so a query that meets it may have 500,016: 2,032,065,024.
//   values  A value's elements are at most 16,383, those of a latent, which is a key, 32,767. The weights of
//           a block add up to at most 131,060, where values are latents to 65,520 (round_weights), which
//           makes 2,147,155,980 and 2,146,893,840 < 2^31. int8 values have weights of at most 32,761 each:
//           32 * 32,761 * 127 = 133,140,704.
//

struct Bounds { float element, norm; };
constexpr Bounds kKeyBounds{.element = 32767.0f, .norm = 46000.0f}, kValueBounds{.element = 16383.0f, .norm = 0.0f}; // norm 0: any
SIMD Bounds query_bounds(KVType type) { return type == KVType::S8 ? Bounds{.element = 32767.0f, .norm = 500000.0f} : kKeyBounds; }

// The largest magnitude in x [n]: as integers NaN and infinity are the largest.
SIMD float largest_of(const float* x, int64_t n) {
    I top = seti(0);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) top = maxi(top, bits(abs(load(x + i))));
    if (i < n) top = maxi(top, bits(abs(load_n(x + i, n - i))));
    const int32_t largest_bits = rmaxi(top);
    float largest;
    __builtin_memcpy(&largest, &largest_bits, 4);
    return largest;
}
SIMD bool is_finite(float x) { return x - x == 0.0f; }

// The unit in which x [n], whose largest magnitude is given, stays within bounds, one of which it reaches.
SIMD float unit_of(const float* x, int64_t n, float largest, Bounds bounds) {
    const float unit = largest * (1.0f / bounds.element);
    if (bounds.norm == 0.0f) return largest / bounds.element; // values are what the reference has, to the bit
    int32_t exponent; // squares of a large row would be infinite, so they are those of x / 2^n, and smaller than 16
    __builtin_memcpy(&exponent, &largest, 4);
    exponent = exponent < 0x7e800000 ? exponent & 0x7f800000 : 0x7e800000; // 2^-n is no denormal
    const F inverse = from_bits(seti(0x7f000000 - exponent));
    F squares = zero();
    int64_t i = 0;
    for (; i < n; i += 16) {
        const F v = (i + 16 <= n ? load(x + i) : load_n(x + i, n - i)) * inverse;
        squares = fma(v, v, squares);
    }
    float power;
    __builtin_memcpy(&power, &exponent, 4);
    const float of_norm = power * (__builtin_sqrtf(rsum(squares)) * (1.0f / bounds.norm));
    return of_norm > unit ? of_norm : unit;
}

// x [n] to 16 bits within bounds; returns the factor. A row that is not finite becomes zeros, and its factor NaN;
// one below 2^-100 is nothing.
float round_row(const float* x, int64_t n, Bounds bounds, int16_t* y) {
    const float largest = largest_of(x, n);
    if (!(is_finite(largest) && largest >= 0x1p-100f)) {
        __builtin_memset(y, 0, 2 * n);
        return largest < 1.0f ? 0.0f : __builtin_nanf("");
    }
    const float unit = unit_of(x, n, largest, bounds);
    int64_t i = 0;
    if (bounds.norm > 0.0f) // as exact as its bounds need
        for (const F inverse = set1(1.0f / unit); i + 16 <= n; i += 16) store_s16(y + i, to_int(load(x + i) * inverse));
    for (; i + 16 <= n; i += 16) store_s16(y + i, to_int(load(x + i) / set1(unit)));
    if (i == n) return unit;
    int16_t lanes[16];
    store_s16(lanes, to_int(load_n(x + i, n - i) / set1(unit)));
    __builtin_memcpy(y + i, lanes, 2 * (n - i));
    return unit;
}

// x [n] to int8, symmetric; factors as those of round_row.
float round_row_s8(const float* x, int64_t n, uint8_t* y) {
    const float largest = largest_of(x, n), d = is_finite(largest) ? largest / 127.0f : __builtin_nanf("");
    for (int64_t i = 0; i < n; i += 16) {
        const int64_t count = n - i < 16 ? n - i : 16;
        int8_t lanes[16] = {};
        if (d > 0.0f) store_s8(lanes, to_int(round_even(load_n(x + i, count) / set1(d))));
        __builtin_memcpy(y + i, lanes, count);
    }
    return d;
}
