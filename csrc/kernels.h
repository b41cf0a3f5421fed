// The table of kernels: one per instruction set, chosen at load.
#pragma once
#include "sample_passes.h"
#include "types.h"

namespace octavo {

// Kernels that one op alone calls, each with what it is handed: units [begin, end), which the op counts, and scratch.
//   rotary_append   head slots of tokens x (query heads, key heads, value heads); scratch: head dim floats
//   latent_append   head slots of tokens x (query heads, the key); scratch: 3 head dim floats
#define OWN_KERNELS(K) K(rotary_append, RotaryArgs) K(latent_append, LatentArgs)
#define DECLARE_OWN_KERNEL(name, Args) void (*name)(const Args&, int64_t begin, int64_t end, float* scratch);

struct Kernels {
    const char* name;
    int tile_int8;  // most tokens of an activation panel, quantized weights
    int tile_float; // likewise, float weights
    int panels_at_once; // of quantized weights, that a tile takes best
    bool integer_scales; // whether narrow U4 is packed with units (Matrix)
    int64_t screened_rows; // of logits, up to which screening takes less time than the product
    int64_t rows_to_a_whole_one; // that are screened, one may need all of its logits (ScreenArgs::whole); 0: none may
    int64_t attention_rows; // query rows of one attention item, if there is enough to do

    // Rows [begin, end) of x to activation panels. scratch: 2 k floats.
    void (*prepare)(const PrepareArgs&, int64_t begin, int64_t end, float* scratch);
    // Bytes of scratch that linear needs.
    int64_t (*linear_scratch)(const Matrix&);
    // Output panels [begin, end) for all tokens.
    void (*linear)(const LinearArgs&, int64_t begin, int64_t end);
    // Bounds of the rows of panels [begin, end). scratch: as linear's.
    void (*screen_bounds)(const Matrix&, const ScreenBounds&, int64_t begin, int64_t end, uint8_t* scratch);
    // What screen reads of a row of rounded activations: where its blocks' sums start, `stride` apart, its part along the
    // direction, and the norm of the rest.
    void (*screen_row)(const int8_t* q, const float* d, const ScreenBounds&, int64_t k, int64_t stride, int32_t* start, float* part, float* norm);
    // Upper bounds of output panels [begin, end) for all tokens.
    void (*screen)(const ScreenArgs&, int64_t begin, int64_t end);
    // One output of linear, for a row of rounded activations: of S8Cut, without epilogue.
    float (*row_product)(const Matrix&, int64_t row, const int8_t* q, const float* d);
    void (*norm)(const float* x, float* y, int64_t k, NormKind kind, const float* gain, const float* bias,
                 float eps);
    void (*add)(const float* x, const float* y, float* z, int64_t count);
    void (*gate)(const float* x, float gate, float* y, int64_t count);
    // y += factor * x
    void (*axpy)(const float* x, float factor, float* y, int64_t count);
    // y = scale * row `row` of the matrix, dequantized; scale 1 changes no bit.
    void (*embed)(const Matrix&, int64_t row, float scale, float* y);
    // p = softmax(x)
    void (*softmax)(const float* x, float* p, int64_t count);
    void (*sigmoid)(const float* x, float* p, int64_t count);
    OWN_KERNELS(DECLARE_OWN_KERNEL)
    // Bytes of scratch that one attention item of `rows` query rows needs.
    int64_t (*attention_scratch)(int64_t rows, int64_t d, int64_t dv);
    void (*attention)(const AttentionArgs&, const AttentionItem&, float* scratch);
    // Merge `splits` partial results of one query row, in order, to y [dv].
    void (*attention_merge)(const float* partial, int64_t splits, int64_t dv, const float* sink, float* y);
    const SamplePasses* sample;
};

// Null where the instruction set was not compiled in.
const Kernels* kernels_generic();
const Kernels* kernels_avx2();
const Kernels* kernels_avxvnni();
const Kernels* kernels_avx512vnni();
const Kernels* kernels_neon();

} // namespace octavo
