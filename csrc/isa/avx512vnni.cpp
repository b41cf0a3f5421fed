// AVX-512 (F, BW, DQ, VL) with VNNI.
#include "../kernels.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>

#define SIMD static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define ISA_NAME "avx512vnni"
#define LARGEST_TILE_INT8 6
#define LARGEST_TILE_FLOAT 12
#define PANELS_AT_ONCE 2
#define INTEGER_SCALES 0
#define SCREENED_ROWS 4
#define ROWS_TO_A_WHOLE_ONE 0 // there would have to be more than are screened
#define SHIFTED_S8 1
#define ROWS 6
#define COLUMNS 2
#define REGISTERS 32 // of V
#define DIRECT_ROWS 6
#define ATTENTION_ROWS 192
#define LARGEST_TILE (LARGEST_TILE_INT8 > LARGEST_TILE_FLOAT ? LARGEST_TILE_INT8 : LARGEST_TILE_FLOAT)

namespace octavo {
namespace {
#include "vec_avx512.inl"
#include "kernels.inl"
#include "dot_vnni512.inl"
#include "epilogue.inl"
#include "linear.inl"
#include "screen.inl"
#include "rotary.inl"
#include "latent.inl"
#include "attention.inl"
#include "table.inl"
} // namespace
const Kernels* kernels_avx512vnni() { return &kTable; }
} // namespace octavo
#else
namespace octavo {
const Kernels* kernels_avx512vnni() { return nullptr; }
} // namespace octavo
#endif
