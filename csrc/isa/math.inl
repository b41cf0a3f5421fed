// Elementary functions on 16 lanes. Coefficients are Chebyshev fits of our own; errors are in ulp of
// f32, measured over every float of the range. NaN in, NaN out.

const float kLog2e = 1.44269504f, kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;

SIMD F copysign(F magnitude, F sign) {
    I s = andi(bits(sign), seti((int32_t)0x80000000)), m = andi(bits(magnitude), seti(0x7fffffff));
    return from_bits(addi(m, s));
}

// In the lowest bits of 1.5 * 2^23 + 127, plus a number of at most 127 without its fraction, is the exponent of 2^n.
const float kMagic = 12583039.0f;

// e^x = e^r 2^n for |r| <= ln 2 / 2, before the scaling by 2^n.
SIMD F exp_reduced(F x, F* scale) {
    const F shifted = fma(x, set1(kLog2e), set1(kMagic)), n = shifted - set1(kMagic);
    *scale = from_bits(shl<23>(bits(shifted)));
    F r = fma(n, set1(-kLn2High), x);
    r = fma(n, set1(-kLn2Low), r);
    F p = fma(set1(1.393366939e-3f), r, set1(8.363192819e-3f));
    p = fma(p, r, set1(4.166646474e-2f));
    p = fma(p, r, set1(1.666657690e-1f));
    p = fma(p, r, set1(5.000000013e-1f));
    return fma(p, r * r, r) + set1(1.0f);
}

// 2^x for x <= 0; below -126.5, where f32 has only denormals left, 0.
SIMD F exp2_reduced(F x, F* scale) {
    const F magic = set1(kMagic), bounded = max(set1(-127.0f), x);
    const F shifted = bounded + magic;
    *scale = from_bits(shl<23>(bits(shifted)));
    return bounded - (shifted - magic);
}
SIMD F exp2_negative(F x) {
    F scale;
    const F r = exp2_reduced(x, &scale);
    F p = fma(set1(1.546144746e-4f), r, set1(1.339086735e-3f));
    p = fma(p, r, set1(9.618056670e-3f));
    p = fma(p, r, set1(5.550357104e-2f));
    p = fma(p, r, set1(2.402265092e-1f));
    p = fma(p, r, set1(6.931471880e-1f));
    p = fma(p, r, set1(1.0f));
    return p * scale;
}
// The same within 2.6e-6 of it, for what is rounded to 16 bits.
SIMD F exp2_rounded(F x) {
    F scale;
    const F r = exp2_reduced(x, &scale);
    F p = fma(set1(9.570100345e-3f), r, set1(5.591785908e-2f));
    p = fma(p, r, set1(2.402474433e-1f));
    p = fma(p, r, set1(6.931217909e-1f));
    p = fma(p, r, set1(9.999992847e-1f));
    return p * scale;
}

// e^x from 1.2e-38 at -87.3 to 2.4e38 at 88.3, and no further.
SIMD F exp_bounded(F x) {
    F scale, p = exp_reduced(min(set1(88.3f), max(set1(-87.33f), x)), &scale);
    return p * scale;
}
// e^x; 0 below -87.3, 2.4e38 above 88.3 (callers divide by it or by 1 plus it).
SIMD F exp(F x) { return select(less(x, set1(-87.33f)), zero(), exp_bounded(x)); }

SIMD float exp2_negative(float x) { return first_lane(exp2_negative(set1(x))); }

SIMD F tanh(F x) {
    F z = x * x;
    F p = fma(set1(2.272710835e-3f), z, set1(-8.326408846e-3f));
    p = fma(p, z, set1(2.176363633e-2f));
    p = fma(p, z, set1(-5.395862468e-2f));
    p = fma(p, z, set1(1.333330097e-1f));
    p = fma(p, z, set1(-3.333333316e-1f));
    F small = fma(p, z * x, x);
    F e = exp(abs(x) + abs(x));
    F large = set1(1.0f) - set1(2.0f) / (e + set1(1.0f));
    return select(less(abs(x), set1(0.625f)), small, copysign(large, x));
}

// Within 1.2e-7 of the truth everywhere.
SIMD F erf(F x) {
    F z = x * x;
    F p = fma(set1(-9.673590170e-6f), z, set1(1.126825367e-4f));
    p = fma(p, z, set1(-8.484396519e-4f));
    p = fma(p, z, set1(5.221053410e-3f));
    p = fma(p, z, set1(-2.686543831e-2f));
    p = fma(p, z, set1(1.128378262e-1f));
    p = fma(p, z, set1(-3.761263848e-1f));
    p = fma(p, z, set1(1.128379167f));
    F a = min(set1(4.0f), abs(x)); // log of erfc on [1, 4]
    F q = fma(set1(-4.986728214e-8f), a, set1(2.725838743e-6f));
    q = fma(q, a, set1(-5.634694063e-5f));
    q = fma(q, a, set1(6.519366286e-4f));
    q = fma(q, a, set1(-4.943775648e-3f));
    q = fma(q, a, set1(2.681811408e-2f));
    q = fma(q, a, set1(-1.106310163e-1f));
    q = fma(q, a, set1(-6.313521465e-1f));
    q = fma(q, a, set1(-1.130462406f));
    q = fma(q, a, set1(3.674469145e-4f));
    F large = copysign(set1(1.0f) - exp(q), x);
    return select(less(abs(x), set1(1.0f)), p * x, large);
}

SIMD F sigmoid(F x) { return set1(1.0f) / (set1(1.0f) + exp_bounded(zero() - x)); }

SIMD F activate(F x, Activation activation) {
    switch (activation) {
    case Activation::None: return x;
    case Activation::Silu: return x / (set1(1.0f) + exp_bounded(zero() - x));
    case Activation::Gelu: return x * (set1(0.5f) * (set1(1.0f) + erf(x * set1(0.70710678f))));
    case Activation::GeluTanh: {
        // (1 + tanh(z)) / 2 is sigmoid(2 z), which costs half as much and loses nothing where tanh nears -1.
        return x * sigmoid(set1(1.59576912f) * fma(set1(0.044715f) * x * x, x, x));
    }
    case Activation::Relu: return max(zero(), x); // max gives its second operand for NaN
    }
    return x;
}
