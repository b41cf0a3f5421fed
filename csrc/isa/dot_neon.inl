// Integer tiles with sdot: 4 rows x 4 products a register, four registers for a quad's 16 rows.

// A quad of one token, repeated for 4 rows.
SIMD int8x16_t quad(const int8_t* q, int64_t i) { return vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t*)q + i)); }

template <int C> struct Sums { // of 16 rows and C tokens
    int32x4_t z[C][4];

    SIMD_MEMBER explicit Sums(const int32_t* start) {
        UNROLL for (int m = 0; m < C; m++)
            UNROLL for (int r = 0; r < 4; r++) z[m][r] = vdupq_n_s32(start ? start[m] : 0);
    }
    SIMD_MEMBER void add(int rows, int8x16_t w, const int8_t* q, int64_t first) {
        UNROLL for (int m = 0; m < C; m++) z[m][rows] = vdotq_s32(z[m][rows], w, quad(q, first + m));
    }
    SIMD_MEMBER void store(I (&c)[C]) const {
        UNROLL for (int m = 0; m < C; m++) memcpy(&c[m], z[m], 64);
    }
};

struct U4 {
    enum : int64_t { bytes = 256, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 1, grouped = 1 };
    template <int C, bool MIN> static void dot(const uint8_t* w, const int8_t* q, const int32_t* sum, I (&c)[C]) {
        Sums<C> sums(MIN ? nullptr : sum);
        for (int j = 0; j < 4; j++)
            UNROLL for (int r = 0; r < 4; r++) {
                const uint8x16_t v = vld1q_u8(w + 64 * j + 16 * r);
                sums.add(r, vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15))), q, j * C);
                sums.add(r, vreinterpretq_s8_u8(vshrq_n_u8(v, 4)), q, (j + 4) * C);
            }
        sums.store(c);
    }
};

// As U4, each number with a fifth bit: bit j of a row's byte is that of quad j.
struct U5 {
    enum : int64_t { bytes = 320, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 0, grouped = 0 };
    template <int C, bool MIN> static void dot(const uint8_t* w, const int8_t* q, const int32_t* sum, I (&c)[C]) {
        Sums<C> sums(MIN ? nullptr : sum);
        const uint8x16_t fifth = vdupq_n_u8(16);
        for (int j = 0; j < 4; j++)
            UNROLL for (int r = 0; r < 4; r++) {
                const uint8x16_t v = vld1q_u8(w + 64 * j + 16 * r), bits = vld1q_u8(w + 256 + 16 * r);
                const uint8x16_t low = vandq_u8(vshlq_u8(bits, vdupq_n_s8((int8_t)(4 - j))), fifth);
                const uint8x16_t high = vandq_u8(vshlq_u8(bits, vdupq_n_s8((int8_t)-j)), fifth);
                sums.add(r, vreinterpretq_s8_u8(vorrq_u8(vandq_u8(v, vdupq_n_u8(15)), low)), q, j * C);
                sums.add(r, vreinterpretq_s8_u8(vorrq_u8(vshrq_n_u8(v, 4), high)), q, (j + 4) * C);
            }
        sums.store(c);
    }
};

struct U6 { // half a block of K6
    enum : int64_t { bytes = 384, part_bytes = 192, parts = 2, quads = 4, dot_by_scale = 0, grouped = 0 };
    template <int C, bool MIN> static void dot(const uint8_t* w, const int8_t* q, const int32_t* sum, I (&c)[C]) {
        Sums<C> sums(sum);
        const uint8x16_t high = vdupq_n_u8(48);
        for (int j = 0; j < 4; j++)
            UNROLL for (int r = 0; r < 4; r++) {
                const uint8x16_t v = vld1q_u8(w + 64 * (j % 2) + 16 * r), pairs = vld1q_u8(w + 128 + 16 * r);
                const uint8x16_t low = j < 2 ? vandq_u8(v, vdupq_n_u8(15)) : vshrq_n_u8(v, 4);
                const uint8x16_t bits = vandq_u8(vshlq_u8(pairs, vdupq_n_s8((int8_t)(4 - 2 * j))), high);
                sums.add(r, vreinterpretq_s8_u8(vorrq_u8(low, bits)), q, j * C);
            }
        sums.store(c);
    }
};

struct C4 { // U4's bytes, each nibble the code of a number
    enum : int64_t { bytes = 256, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 0, grouped = 0 };
    template <int C, bool MIN> static void dot(const uint8_t* w, const int8_t* q, const int32_t*, I (&c)[C]) {
        Sums<C> sums(nullptr);
        const int8x16_t code = vld1q_s8(kIQ4);
        for (int j = 0; j < 4; j++)
            UNROLL for (int r = 0; r < 4; r++) {
                const uint8x16_t v = vld1q_u8(w + 64 * j + 16 * r);
                sums.add(r, vqtbl1q_s8(code, vandq_u8(v, vdupq_n_u8(15))), q, j * C);
                sums.add(r, vqtbl1q_s8(code, vshrq_n_u8(v, 4)), q, (j + 4) * C);
            }
        sums.store(c);
    }
};

template <int QUADS> struct S8Quads { // one part
    enum : int64_t { bytes = 512, part_bytes = QUADS * 64, parts = 8 / QUADS, quads = QUADS, dot_by_scale = 0, grouped = QUADS == 8 };
    template <int C, bool MIN> static void dot(const uint8_t* w, const int8_t* q, const int32_t*, I (&c)[C]) {
        Sums<C> sums(nullptr);
        for (int j = 0; j < QUADS; j++)
            UNROLL for (int r = 0; r < 4; r++) sums.add(r, vld1q_s8((const int8_t*)w + 64 * j + 16 * r), q, j * C);
        sums.store(c);
    }
};

using S8 = S8Quads<8>;
using S8By16 = S8Quads<4>;
using S8Joined = S8;

#include "dot_panel.inl"
