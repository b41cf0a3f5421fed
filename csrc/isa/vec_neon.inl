// 16 lanes as four q registers: the compiler's vectors, but for f16, which it would take apart bit by bit.
#define OWN_HALVES
#include "vec_generic.inl"
#undef OWN_HALVES

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
