// Integer tiles in the compiler's vectors: 32 lanes of int16, two per row. Lanes 2r and 2r + 1 hold
// elements (0, 1) and (2, 3) of row r's quad; each byte pair is taken apart by shifts.

typedef int16_t H __attribute__((vector_size(64)));
typedef uint16_t UH __attribute__((vector_size(64)));

// The activations of one quad as int16 lanes: element `odd` of each pair, repeated for 16 rows.
SIMD H quad_elements(const int8_t* q, int odd) {
    const uint32_t pair = (uint32_t)(uint16_t)q[odd] | (uint32_t)(uint16_t)q[2 + odd] << 16;
    return (H)(pair - U{});
}
SIMD I widen_pairs(H x) { return ((I)x << 16 >> 16) + ((I)x >> 16); }

struct U4 {
    enum : int64_t { bytes = 256, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 1, grouped = 1 };
    // 16 products of at most 15 x 127 fit an int16 lane, so a block is widened once.
    template <int C, bool MIN> static void dot(const uint8_t* w, const int8_t* q, const int32_t* sum, I (&c)[C]) {
        H lanes[C] = {};
        for (int j = 0; j < 4; j++) {
            UH v;
            memcpy(&v, w + 64 * j, 64);
            const H low0 = (H)(v & 15), low1 = (H)(v >> 8 & 15), high0 = (H)(v >> 4 & 15), high1 = (H)(v >> 12);
            for (int m = 0; m < C; m++) {
                const int8_t* a = q + (j * C + m) * 4;
                const int8_t* b = q + ((j + 4) * C + m) * 4;
                lanes[m] += low0 * quad_elements(a, 0) + low1 * quad_elements(a, 1);
                lanes[m] += high0 * quad_elements(b, 0) + high1 * quad_elements(b, 1);
            }
        }
        for (int m = 0; m < C; m++) c[m] = widen_pairs(lanes[m]) + (MIN ? seti(0) : seti(sum[m]));
    }
};

// As U4, each number with a fifth bit; half a block, 8 products of at most 31 x 127, fits an int16 lane.
struct U5 {
    enum : int64_t { bytes = 320, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 0, grouped = 0 };
    template <int C, bool MIN> static void dot(const uint8_t* w, const int8_t* q, const int32_t* sum, I (&c)[C]) {
        UH bits;
        memcpy(&bits, w + 256, 64);
        for (int m = 0; m < C; m++) c[m] = MIN ? seti(0) : seti(sum[m]);
        for (int half = 0; half < 2; half++) {
            H lanes[C] = {};
            for (int j = 0; j < 4; j++) {
                UH v;
                memcpy(&v, w + 64 * j, 64);
                v = half ? v >> 4 & 0x0f0f : v & 0x0f0f;
                v |= (half ? bits >> j : bits << (4 - j)) & 0x1010;
                const H even = (H)(v & 31), odd = (H)(v >> 8);
                for (int m = 0; m < C; m++) {
                    const int8_t* a = q + ((j + 4 * half) * C + m) * 4;
                    lanes[m] += even * quad_elements(a, 0) + odd * quad_elements(a, 1);
                }
            }
            for (int m = 0; m < C; m++) c[m] += widen_pairs(lanes[m]);
        }
    }
};

// Half a block of K6: 4 products of at most 63 x 127 fit an int16 lane.
struct U6 {
    enum : int64_t { bytes = 384, part_bytes = 192, parts = 2, quads = 4, dot_by_scale = 0, grouped = 0 };
    template <int C, bool MIN> static void dot(const uint8_t* w, const int8_t* q, const int32_t* sum, I (&c)[C]) {
        UH pairs;
        memcpy(&pairs, w + 128, 64);
        for (int m = 0; m < C; m++) c[m] = seti(sum[m]);
        for (int half = 0; half < 2; half++) {
            H lanes[C] = {};
            for (int j = 0; j < 2; j++) {
                UH v;
                memcpy(&v, w + 64 * j, 64);
                v = (half ? v >> 4 & 0x0f0f : v & 0x0f0f) | (pairs >> 2 * (j + 2 * half) & 0x0303) << 4;
                const H even = (H)(v & 63), odd = (H)(v >> 8);
                for (int m = 0; m < C; m++) {
                    const int8_t* a = q + ((j + 2 * half) * C + m) * 4;
                    lanes[m] += even * quad_elements(a, 0) + odd * quad_elements(a, 1);
                }
            }
            for (int m = 0; m < C; m++) c[m] += widen_pairs(lanes[m]);
        }
    }
};

// U4's bytes, each nibble the code of a number.
struct C4 {
    enum : int64_t { bytes = 256, part_bytes = bytes, parts = 1, quads = 8, dot_by_scale = 0, grouped = 0 };
    template <int C, bool MIN> static void dot(const uint8_t* w, const int8_t* q, const int32_t*, I (&c)[C]) {
        for (int m = 0; m < C; m++) c[m] = seti(0);
        for (int j = 0; j < 8; j++) {
            H even{}, odd{};
            for (int i = 0; i < 32; i++) {
                const uint8_t* pair = w + 64 * (j % 4) + 2 * i;
                even[i] = kIQ4[pair[0] >> j / 4 * 4 & 15], odd[i] = kIQ4[pair[1] >> j / 4 * 4 & 15];
            }
            for (int m = 0; m < C; m++) {
                const int8_t* a = q + (j * C + m) * 4; // a pair is at most 2 x 127 x 127
                c[m] += widen_pairs(even * quad_elements(a, 0) + odd * quad_elements(a, 1));
            }
        }
    }
};

template <int QUADS> struct S8Quads { // one part
    enum : int64_t { bytes = 512, part_bytes = QUADS * 64, parts = 8 / QUADS, quads = QUADS, dot_by_scale = 0, grouped = QUADS == 8 };
    template <int C, bool MIN> static void dot(const uint8_t* w, const int8_t* q, const int32_t*, I (&c)[C]) {
        for (int m = 0; m < C; m++) c[m] = seti(0);
        for (int j = 0; j < QUADS; j++) {
            H v;
            memcpy(&v, w + 64 * j, 64);
            const H even = (H)((UH)v << 8) >> 8, odd = v >> 8;
            for (int m = 0; m < C; m++) {
                const int8_t* a = q + (j * C + m) * 4; // a pair is at most 2 x 128 x 127 = 32,512
                c[m] += widen_pairs(even * quad_elements(a, 0) + odd * quad_elements(a, 1));
            }
        }
    }
};

using S8 = S8Quads<8>;
using S8By16 = S8Quads<4>;
using S8Joined = S8;

#include "dot_panel.inl"
