// 16 lanes as four q registers: the compiler's vectors, but for f16, which it would take apart bit by bit.
#define OWN_HALVES
#define OWN_DOT
#include "vec_generic.inl"
#undef OWN_HALVES
#undef OWN_DOT

SIMD void vidot(VI& sum, VI x, VI y) {
    int32x4_t z[4];
    int16x8_t a[4], b[4];
    memcpy(z, &sum, 64), memcpy(a, &x, 64), memcpy(b, &y, 64);
    UNROLL for (int i = 0; i < 4; i++)
        z[i] = vaddq_s32(z[i], vpaddq_s32(vmull_s16(vget_low_s16(a[i]), vget_low_s16(b[i])), vmull_high_s16(a[i], b[i])));
    memcpy(&sum, z, 64);
}

SIMD F load_f16(const uint16_t* p) {
    float32x4_t x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    F r;
    memcpy(&r, x, 64);
    return r;
}
SIMD void store_f16(uint16_t* p, F x) {
    float32x4_t y[4];
    memcpy(y, &x, 64);
    UNROLL for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(y[i])));
}
SIMD float widen_f16(uint16_t h) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0); }
SIMD uint16_t narrow_f16(float x) { return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0); }

SIMD V vload_f16(const uint16_t* p) { return load_f16(p); }
