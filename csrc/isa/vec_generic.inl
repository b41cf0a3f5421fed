// 16 lanes in the compiler's own vectors: it splits them into what the CPU has.
typedef float F __attribute__((vector_size(64)));
typedef int32_t I __attribute__((vector_size(64)));
typedef uint32_t U __attribute__((vector_size(64)));
typedef I M;
typedef F V;
enum { VW = 16 };

SIMD F zero() { return F{}; }
SIMD F set1(float x) { return x - F{}; }
SIMD I seti(int32_t x) { return x - I{}; }
SIMD F load(const float* p) { F x; memcpy(&x, p, 64); return x; }
SIMD void store(float* p, F x) { memcpy(p, &x, 64); }
SIMD F load_n(const float* p, int64_t n) { F x{}; for (int i = 0; i < n; i++) x[i] = p[i]; return x; }
SIMD void store_n(float* p, F x, int64_t n) { for (int i = 0; i < n; i++) p[i] = x[i]; }
SIMD F fma(F a, F b, F c) {
#ifdef __FP_FAST_FMAF // one rounding where the CPU has it for free
    F r;
    for (int i = 0; i < 16; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
#else
    return a * b + c;
#endif
}
SIMD F select(M m, F yes, F no) { return (F)((m & (I)yes) | (~m & (I)no)); }
SIMD F max(F a, F b) { return select(a > b, a, b); } // b where either is NaN
SIMD F min(F a, F b) { return select(a < b, a, b); }
SIMD F root(F a) { F r; for (int i = 0; i < 16; i++) r[i] = __builtin_sqrtf(a[i]); return r; }
SIMD F abs(F a) { return (F)((I)a & 0x7fffffff); }
SIMD I bits(F a) { return (I)a; }
SIMD F from_bits(I a) { return (F)a; }
SIMD M less(F a, F b) { return a < b; }
SIMD M lessi(I a, I b) { return a < b; }
SIMD M both(M a, M b) { return a & b; }
SIMD bool any(M m) { int32_t r = 0; for (int i = 0; i < 16; i++) r |= m[i]; return r != 0; }
// Adding 1.5 * 2^23 leaves no fraction bits; larger numbers are integers already.
SIMD F round_even(F a) {
    const F magic = set1(12582912.0f);
    return select(less(abs(a), set1(4194304.0f)), (a + magic) - magic, a);
}
SIMD I loadi(const int32_t* p) { I x; memcpy(&x, p, 64); return x; }
SIMD I addi(I a, I b) { return (I)((U)a + (U)b); }
SIMD I andi(I a, I b) { return a & b; }
SIMD I maxi(I a, I b) { M m = a > b; return (m & a) | (~m & b); }
template <int N> SIMD I shl(I a) { return (I)((U)a << N); }
SIMD F to_float(I a) { return __builtin_convertvector(a, F); }
SIMD I to_int(F a) { return __builtin_convertvector(round_even(a), I); }

// Sums are taken in one order on every instruction set: halves of 8, of 4, of 2, of 1.
SIMD float rsum(F x) {
    float h[8];
    for (int i = 0; i < 8; i++) h[i] = x[i] + x[i + 8];
    for (int i = 0; i < 4; i++) h[i] += h[i + 4];
    return (h[0] + h[2]) + (h[1] + h[3]);
}
SIMD float first_lane(F x) { return x[0]; }
SIMD float rmax(F x) { float r = x[0]; for (int i = 1; i < 16; i++) r = x[i] > r ? x[i] : r; return r; }
SIMD int32_t rmaxi(I x) { int32_t r = x[0]; for (int i = 1; i < 16; i++) r = x[i] > r ? x[i] : r; return r; }
SIMD int32_t rsumi(I x) { int32_t r = 0; for (int i = 0; i < 16; i++) r += x[i]; return r; }

SIMD void rmaxi4(int32_t* out, const I* x) { for (int i = 0; i < 4; i++) out[i] = rmaxi(x[i]); }
SIMD void rsumi4(int32_t* out, const I* x) { for (int i = 0; i < 4; i++) out[i] = rsumi(x[i]); }

#ifndef OWN_HALVES // f16 by the CPU's own instructions
SIMD F widen_f16_bits(I h) {
    I magnitude = shl<13>(andi(h, seti(0x7fff)));
    F x = from_bits(magnitude) * set1(0x1p112f); // moves the exponent's bias, denormals included
    M special = magnitude > seti(0x0f7fffff);    // infinity and NaN
    I r = (special & (magnitude | seti(0x7f800000))) | (~special & bits(x));
    return from_bits(r | shl<16>(andi(h, seti(0x8000))));
}
#endif
SIMD I load_u16(const uint16_t* p) { I x; for (int i = 0; i < 16; i++) x[i] = p[i]; return x; }
#ifndef OWN_HALVES
SIMD F load_f16(const uint16_t* p) { return widen_f16_bits(load_u16(p)); }
#endif
SIMD F load_bf16(const uint16_t* p) { return from_bits(shl<16>(load_u16(p))); }
#ifndef OWN_HALVES
SIMD float widen_f16(uint16_t h) { return widen_f16_bits(seti(h))[0]; }
SIMD uint16_t narrow_f16(float value) { // round to nearest, ties to even
    uint32_t x;
    memcpy(&x, &value, 4);
    const uint32_t sign = x >> 16 & 0x8000, m = x & 0x7fffffff;
    if (m > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (m >= 0x477ff000) return (uint16_t)(sign | 0x7c00); // rounds beyond 65504
    if (m < 0x38800000) { // denormal: let an addition do the rounding
        float y;
        memcpy(&y, &m, 4);
        y += 0.5f;
        uint32_t r;
        memcpy(&r, &y, 4);
        return (uint16_t)(sign | (r - 0x3f000000));
    }
    return (uint16_t)(sign | ((m - 0x38000000 + 0xfff + (m >> 13 & 1)) >> 13));
}
SIMD void store_f16(uint16_t* p, F x) { for (int i = 0; i < 16; i++) p[i] = narrow_f16(x[i]); }
#endif
SIMD void store_s8(int8_t* p, I x) { for (int i = 0; i < 16; i++) p[i] = (int8_t)x[i]; }
SIMD F load_halves(const float* low, const float* high) {
    F x;
    memcpy(&x, low, 32);
    memcpy((char*)&x + 32, high, 32);
    return x;
}
SIMD void store_halves(float* low, float* high, F x) {
    memcpy(low, &x, 32);
    memcpy(high, (const char*)&x + 32, 32);
}

SIMD V vzero() { return zero(); }
SIMD V vset1(float x) { return set1(x); }
SIMD V vload(const float* p) { return load(p); }
SIMD void vstore(float* p, V x) { store(p, x); }
SIMD V vfma(V a, V b, V c) { return fma(a, b, c); }
SIMD V vmul(V a, V b) { return a * b; }
#ifndef OWN_HALVES
SIMD V vload_f16(const uint16_t* p) { return load_f16(p); }
#endif
SIMD V vload_bf16(const uint16_t* p) { return load_bf16(p); }

// VW pairs of 16-bit integers, and sums of their products.
typedef int16_t VI16 __attribute__((vector_size(64)));
typedef I VI;
SIMD VI vizero() { return VI{}; }
SIMD VI viload(const int16_t* p) { VI x; memcpy(&x, p, 64); return x; }
SIMD VI viload(const int8_t* p) {
    VI16 x;
    for (int i = 0; i < 32; i++) x[i] = p[i];
    return (VI)x;
}
SIMD VI vipair(const int16_t* p) { int32_t x; memcpy(&x, p, 4); return seti(x); }
#ifndef OWN_DOT
SIMD void vidot(VI& sum, VI x, VI y) { // unsigned: what is not finite may wrap
    const U low = (U)(shl<16>(x) >> 16) * (U)(shl<16>(y) >> 16), high = (U)(x >> 16) * (U)(y >> 16);
    sum = (I)((U)sum + low + high);
}
#endif
SIMD void vikeep(VI&) {} // as compilers choose
SIMD V vi_float(VI x) { return to_float(x); }
SIMD void store_s16(int16_t* p, I x) { for (int i = 0; i < 16; i++) p[i] = (int16_t)x[i]; }
// A row's lanes folded to four: at [4].
SIMD void fold_max(float* at, F x) {
    for (int i = 0; i < 4; i++) {
        const float a = x[i] > x[i + 8] ? x[i] : x[i + 8], b = x[i + 4] > x[i + 12] ? x[i + 4] : x[i + 12];
        at[i] = a > b ? a : b;
    }
}
SIMD void fold_sum(float* at, F x) {
    for (int i = 0; i < 4; i++) at[i] = (x[i] + x[i + 8]) + (x[i + 4] + x[i + 12]);
}
SIMD void fold_max_bits(float* at, I x) {
    int32_t r[4];
    for (int i = 0; i < 4; i++) {
        const int32_t a = x[i] > x[i + 8] ? x[i] : x[i + 8], b = x[i + 4] > x[i + 12] ? x[i + 4] : x[i + 12];
        r[i] = a > b ? a : b;
    }
    memcpy(at, r, 16);
}
// Of 8 lanes; the others are 0.
SIMD F load8(const float* p) { F x{}; memcpy(&x, p, 32); return x; }
SIMD void store8(float* p, F x) { memcpy(p, &x, 32); }
// x [8][4] to the largest of each row, in 8 lanes.
SIMD F rows_max(const float* x) {
    F y{};
    for (int r = 0; r < 8; r++) {
        const float a = x[4 * r] > x[4 * r + 1] ? x[4 * r] : x[4 * r + 1];
        const float b = x[4 * r + 2] > x[4 * r + 3] ? x[4 * r + 2] : x[4 * r + 3];
        y[r] = a > b ? a : b;
    }
    return y;
}
SIMD F rows_max_bits(const float* x) {
    int32_t in[32];
    memcpy(in, x, 128);
    I y{};
    for (int r = 0; r < 8; r++) {
        const int32_t a = in[4 * r] > in[4 * r + 1] ? in[4 * r] : in[4 * r + 1];
        const int32_t b = in[4 * r + 2] > in[4 * r + 3] ? in[4 * r + 2] : in[4 * r + 3];
        y[r] = a > b ? a : b;
    }
    return from_bits(y);
}

SIMD void prefetch(const void* p) { __builtin_prefetch(p); }
SIMD void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); } // to the second-level cache
