// Any CPU: the compiler's vectors, no intrinsics.
#include "../kernels.h"

#if 1
#include <string.h>

#pragma GCC diagnostic ignored "-Wpsabi" // wide vectors never cross a call here: all are inlined
#define SIMD static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define ISA_NAME "generic"
#define LARGEST_TILE_INT8 4
#define LARGEST_TILE_FLOAT 4
#define PANELS_AT_ONCE 1
#define INTEGER_SCALES 0
#define SCREENED_ROWS 4
#define ROWS_TO_A_WHOLE_ONE 0 // there would have to be more than are screened
#define SHIFTED_S8 0
#define ROWS 4
#define COLUMNS 1
#define REGISTERS 8 // of V
#define DIRECT_ROWS 3
#define ATTENTION_ROWS 192
#define LARGEST_TILE (LARGEST_TILE_INT8 > LARGEST_TILE_FLOAT ? LARGEST_TILE_INT8 : LARGEST_TILE_FLOAT)

namespace octavo {
namespace {
#include "vec_generic.inl"
#include "kernels.inl"
#include "dot_generic.inl"
#include "epilogue.inl"
#include "linear.inl"
#include "screen.inl"
#include "rotary.inl"
#include "latent.inl"
#include "attention.inl"
#include "table.inl"
} // namespace
const Kernels* kernels_generic() { return &kTable; }
} // namespace octavo
#else
namespace octavo {
const Kernels* kernels_generic() { return nullptr; }
} // namespace octavo
#endif
