// AVX2 with the 256-bit integer dot product (AVX-VNNI).
#include "../kernels.h"

#if defined(__AVXVNNI__)
#include <immintrin.h>

#define SIMD static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define ISA_NAME "avxvnni"
#define VNNI256 _mm256_dpbusd_avx_epi32
#define LARGEST_TILE_INT8 6
#define LARGEST_TILE_FLOAT 6
#define PANELS_AT_ONCE 1
#define INTEGER_SCALES 0
#define SCREENED_ROWS 4
#define ROWS_TO_A_WHOLE_ONE 0 // there would have to be more than are screened
#define SHIFTED_S8 1
#define ROWS 6
#define COLUMNS 2
#define REGISTERS 16 // of V
#define DIRECT_ROWS 3
#define ATTENTION_ROWS 192
#define LARGEST_TILE (LARGEST_TILE_INT8 > LARGEST_TILE_FLOAT ? LARGEST_TILE_INT8 : LARGEST_TILE_FLOAT)

namespace octavo {
namespace {
#include "vec_avx2.inl"
#include "kernels.inl"
#include "dot_avx2.inl"
#include "epilogue.inl"
#include "linear.inl"
#include "screen.inl"
#include "rotary.inl"
#include "latent.inl"
#include "attention.inl"
#include "table.inl"
} // namespace
const Kernels* kernels_avxvnni() { return &kTable; }
} // namespace octavo
#else
namespace octavo {
const Kernels* kernels_avxvnni() { return nullptr; }
} // namespace octavo
#endif
