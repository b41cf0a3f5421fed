// Plain structs that cross from the program to the kernels.
//
// Nothing here may have inline functions with external linkage: the headers are compiled once per
// instruction set, and the linker keeps any one copy of such a function for all of them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

enum : int {
    kBlock = 32,   // elements of K that share a scale, in weights and in activations
    kPanel = 16,   // output rows packed side by side
    kRescale = 32, // KV positions between rescales of the softmax
    kSplit = 256,  // KV positions of one partial result
    kMaxTile = 16, // upper bound of the tokens in one activation panel
    kLowBytes = 256, kFifthBytes = 64, // of a block of S8Cut
    kKeptBytes = 64, // of a block's sums, two int16 lanes for each of 16 rows
};

enum class Layout : int { F32, F16, BF16, S8, U4, S8By16, U5, S8Cut, F8, NF4, FP4, U2, U3, K4, K5, K6, C4 };
enum class Activation : int { None, Silu, Gelu, GeluTanh, Relu };
enum class KVType : int { F32, F16, BF16, S8, S16 };
enum class NormKind : int { None, Rms, Layer };
enum class Sight : int { Causal, Whole, Cross };

// A packed matrix [n, k]: panels of 16 output rows, each contiguous and 64-byte aligned.
//
//   float panel   [k][16] elements
//   S8 panel      [k/32] blocks of  [8 quads][16 rows][4] int8  | [16] scales | [16] minima, if any
//   S8By16        likewise, with [2][16] scales: one for each half of the block
//   U4 panel      [k/32] blocks of  [4 quads][16 rows][4] bytes | [16] scales | [16] minima
//   U5 panel      likewise, with [16 rows][4] bytes of fifth bits after the quads
//   U2 panel      groups of 8 blocks of  [2 quads][16 rows][4] bytes | [16][2] steps; [16] scales and [16] minima of the group:
//                 byte e of quad i is of elements 4i + e, 8 + 4i + e and so on, two bits each, the first the lowest; a step has a
//                 half block's factor of the scale in its low nibble, that of the minimum in the high one
//   U3 panel      likewise, with [16 rows][4] bytes of third bits before the steps, as U5's fifth ones, and no minima:
//                 scale (step - 32) (q - 4)
//   K4, K5 panel  such groups of U4's and U5's blocks, with [16] steps of the scale and [16] of the minimum, bytes, behind
//                 the values of each; [16] scales and [16] minima of the group
//   K6 panel      likewise, with [2] halves of  [2 quads][16 rows][4] bytes | [16 rows][4] bytes, then [2][16] steps of them,
//                 int8, and no minima: the low nibbles of a half's quad i are elements 4i.., the high ones 8 + 4i.., and bits
//                 2i and 2i + 1 of byte e of the last are the two high bits of element 4i + e: scale step (q - 32)
//   C4 panel      U4's blocks of codes, with [16] steps, int8: scale step code; a group may be a block, too
//   S8Cut panel   S8 + 128 cut: a U4 panel of bits 3 to 6 and, apart from it, [k/32] blocks at `low` of a U4 panel's
//                 bytes without scales, bits 0 to 2 and 7, and at `fifth` of U5's fifth bits, bit 7 once more
//
//   F8 panel      groups of  [16] scales f32, times 2^8 | [columns][16 rows] bytes
//   NF4, FP4      groups of  [16] scales f32 | [columns / 2][16 rows] bytes, the first of two columns in the low nibble
//
// A block's scales lie beside its values, so that a panel is one stream from memory. Where `group` blocks of U4
// or S8 share their tables, these lie beside the first one's values, and the others' values follow.
// zeros: in place of minima are zero points z, [16] bytes below 128, of narrow U4: scale (q - z).
// order: where not null, column j of what is packed is column order[j] of the matrix.
// The low nibbles of U4's quad q are elements 4q..4q+3 of the block, the high ones 16+4q..16+4q+3.
// Bit j of byte e of U5's last quad is the fifth bit of element 4j + e.
// Of S8Cut, what needs the five high bits alone reads the first and the last of the three.
// Scales and minima are f16, or f32 where `wide`. Without minima U4 is scale (q - 8), U5 scale (q - 16).
// units: where not null, [panels][16] of narrow U4 or S8Cut. Where a panel's are not 0, its scales are not f16 but int16, exact
// multiples of their row's unit, a power of two, with row r's at integer_scale_at(r).
// gated: rows 0-7 of panel p are gate rows 8p.., rows 8-15 the up rows of the same numbers.
struct Matrix {
    const uint8_t* data = nullptr;
    int64_t n = 0, k = 0, panels = 0;
    int64_t panel_bytes = 0, block_bytes = 0;
    Layout layout = Layout::F32;
    bool gated = false, wide = false, minima = false, zeros = false; // zeros: minima too
    int64_t group = 1; // blocks; of F8, NF4 and FP4 columns, the last group being what is left
    const int32_t* order = nullptr;
    const float* units = nullptr;
    const uint8_t *low = nullptr, *fifth = nullptr; // of S8Cut
};

// So two instructions repeat the scales of eight rows each in both of a row's int16 lanes.
static inline int64_t integer_scale_at(int64_t row) { return (row & 3) | (row & 4) << 1 | (row & 8) >> 1; }
static inline const float* units_of(const Matrix& w, int64_t panel) { // null: f16 or f32 scales
    return w.units && w.units[panel * kPanel] != 0.0f ? w.units + panel * kPanel : nullptr;
}

// How m tokens are split into panels of at most `most`: sizes differ by one at most.
struct Tiles {
    int64_t count, base, extra; // the first `extra` panels hold base + 1 tokens, the others base
};

static inline Tiles split_tiles(int64_t m, int64_t most) {
    int64_t count = (m + most - 1) / most;
    return count ? Tiles{.count = count, .base = m / count, .extra = m % count} : Tiles{.count = 0, .base = 0, .extra = 0};
}
static inline int64_t tile_start(const Tiles& t, int64_t i) { return i * t.base + (i < t.extra ? i : t.extra); }
static inline int64_t tile_size(const Tiles& t, int64_t i) { return t.base + (i < t.extra ? 1 : 0); }
static inline int64_t tile_of(const Tiles& t, int64_t token) {
    int64_t wide = t.extra * (t.base + 1);
    return token < wide ? token / (t.base + 1) : t.extra + (token - wide) / t.base;
}

// Activations as the linear kernels read them, in panels of Tiles (a panel of c tokens from token s):
//
//   quantized   q at s*k:  [k/4][c][4] int8;  d, u at s*k/32:  [k/32][c];  sum at s*k/32*parts:
//               [k/32][parts][c], a part being what one scale or step of the weights covers
//   float       x at s*k:  [k][c]
//
// q d is the activation; u = d * (sum of q), which meets a weight's minimum; sum is offset * (sum of
// q), where integer dot products start (U2's and U3's do not): offset -8 centres U4 without minima, -16 U5, -128 shifts S8 to u8. (Sums in
// int16 start elsewhere: prepare.inl, start_of.)
struct Activations {
    int8_t* q;
    float* d;
    float* u;
    int32_t* sum;
    float* x;
    int64_t m, k;
    int32_t offset;
    int parts; // 1, or 2 where scales are of half blocks
    Tiles tiles;
};

static inline bool is_quantized(Layout layout) {
    return layout == Layout::S8 || layout == Layout::U4 || layout == Layout::S8By16 || layout == Layout::U5 || layout == Layout::S8Cut ||
           layout >= Layout::U2;
}
static inline bool is_few_bits(Layout layout) { return layout == Layout::U2 || layout == Layout::U3; }
static inline bool has_steps(Layout layout) { return layout >= Layout::U2; } // scales in two levels
static inline bool has_step_minima(Layout layout) { return layout == Layout::U2 || layout == Layout::K4 || layout == Layout::K5; }
static inline int64_t step_bytes(Layout layout) { return !has_steps(layout) ? 0 : layout == Layout::C4 ? (int64_t)kPanel : 2 * kPanel; } // of a block
static inline bool is_coded(Layout layout) { return layout == Layout::F8 || layout == Layout::NF4 || layout == Layout::FP4; }
static inline int64_t coded_group_bytes(const Matrix& w, int64_t columns) { return kPanel * 4 + columns * kPanel / (w.layout == Layout::F8 ? 1 : 2); }
static inline int64_t value_bytes(Layout layout) { // of a block, its steps counted
    switch (layout) {
    case Layout::U2: return 128 + step_bytes(layout);
    case Layout::U3: return 192 + step_bytes(layout);
    case Layout::U4:
    case Layout::S8Cut:
    case Layout::K4:
    case Layout::C4: return 256 + step_bytes(layout);
    case Layout::U5:
    case Layout::K5: return 320 + step_bytes(layout);
    case Layout::K6: return 384 + step_bytes(layout);
    default: return 512;
    }
}
static inline int64_t scale_tables(Layout layout) { return layout == Layout::S8By16 ? 2 : 1; } // of a block
static inline int64_t sum_parts(Layout layout) { return layout == Layout::S8By16 || layout == Layout::K6 || is_few_bits(layout) ? 2 : 1; } // of a block
static constexpr int64_t table_bytes(bool wide) { return wide ? 64 : 32; }
static inline int64_t tables_bytes(const Matrix& w) { // of a group
    return table_bytes(w.wide) * scale_tables(w.layout) + (w.zeros ? (int64_t)kPanel : w.minima ? table_bytes(w.wide) : 0);
}
static inline int64_t group_bytes(const Matrix& w) { return w.group * value_bytes(w.layout) + tables_bytes(w); }
// Of block b, from the start of its panel: its values, and its group's tables.
static inline int64_t values_at(const Matrix& w, int64_t b) {
    return b / w.group * group_bytes(w) + b % w.group * value_bytes(w.layout) + (b % w.group ? tables_bytes(w) : 0);
}
static inline int64_t tables_at(const Matrix& w, int64_t b) { return b / w.group * group_bytes(w) + value_bytes(w.layout); }
// Of w = scale (q + offset) without minima; S8 and C4 are shifted to u8. Of U2 and U3 sums are met as they are.
static inline int32_t offset_of(Layout layout) {
    switch (layout) {
    case Layout::U2:
    case Layout::U3: return 1;
    case Layout::U4:
    case Layout::K4: return -8;
    case Layout::U5:
    case Layout::K5: return -16;
    case Layout::K6: return -32;
    default: return -128;
    }
}

const int8_t kIQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}; // C4's codes (llama.cpp, kvalues_iq4nl)
const float* codes_of(Layout layout); // the 16 numbers of NF4 (Dettmers et al. 2023, appendix E) or FP4 (bitsandbytes)

struct PrepareArgs {
    const float* x; // [rows, k]
    const int32_t* rows = nullptr; // row of x of each of the m tokens; null: the same
    const int32_t* order = nullptr; // Matrix::order
    Activations to;
    NormKind norm = NormKind::None;
    const float* gain = nullptr;
    const float* bias = nullptr;
    float eps = 0.0f;
};

struct LinearArgs {
    Matrix w;
    Activations a;
    const float* bias = nullptr; // [n] or null
    Activation activation = Activation::None;
    float scale = 1.0f, softcap = 0.0f; // softcap 0: none
    const float* residual = nullptr;
    float* y; // [m, gated ? n/2 : n], rows y_stride apart; residual likewise
    int64_t y_stride;
    uint8_t* scratch; // linear_scratch bytes of this thread's own, 64-byte aligned
    const uint8_t* upcoming = nullptr; // panels that the thread is likely to meet after these, or null
    // Of one row: whether its panels are asked for into the first-level cache, not the second. A Zen 5 has as many lines under
    // way to either, and a step of one stream takes 1 to 4 % less with AVX2; a Zen 4 has far fewer to the first.
    bool near = false;
};

// What is known of the x that meet a weight, and from it of its rows (isa/screen.inl).
struct ScreenBounds {
    const float* usual;     // [k] how large |x| usually is beside its direction, above 0
    const float* direction; // [k] x have in common; or zeros
    float direction_norm;   // weighed by the inverse of what is usual
    float* errors;          // [panels][16] how far an eighth of a row's product may lie from what is known of it, by norm of x
    float* along;           // [panels][16] an eighth of what its low bits give along the direction
    float* sizes;           // [panels] norms of the largest of its rows
};

// A row of rounded activations, `row` among all, of which all logits are wanted, to y [n]. sum: as linear's for S8.
struct WholeRow {
    int64_t row;
    const int8_t* q;
    const float* d;
    const int32_t* sum;
    float* y;
};

// What bounds logits from above by an S8Cut weight's high bits alone.
struct ScreenArgs {
    Matrix w; // of S8Cut
    Activations a; // sum: as screen_row makes it
    const float *norms, *parts; // [m], as screen_row makes them
    const float *errors, *along; // ScreenBounds'
    float* upper; // [m, panels]: of each panel the largest bound, an eighth of the logit's
    float* rows;  // [m, n]: bounds of its rows, where that does not lie below what another has for certain
    float* least; // [m] that for certain, of the thread's own
    const WholeRow* whole; // [wholes], ascending, where the table's `wholes` allows any
    int64_t wholes;
    uint8_t* scratch; // as LinearArgs'
    const uint8_t* upcoming;
};

// Pages of one layer. 2^run_bits pages whose numbers follow each other are a run, and a head's parts of them lie one
// after the other: head h of page p is at base + layer_at + (p >> run_bits) * run_stride + h * head_stride +
// (p's place in its run) * page_stride, and in it, one after the other,
//   k [d][page_size], of integers their factors ks [page_size] f32, v [page_size][dv], of integers vs [page_size].
// K is transposed so that a vector holds consecutive positions of one dimension. Integers lie in pairs, those
// of one product and one addition: k [d / 2][page_size][2], v [page_size / 2][dv][2]; a last row without a
// second follows as it is. latent: there is no v, and no vs; the values are the first dv dimensions of k.
struct KVView {
    uint8_t* base;
    int64_t run_stride, layer_at, head_stride, page_stride, ks_at, v_at, vs_at;
    int64_t run_bits, num_pages, page_size, page_bits; // 2^page_bits is page_size, or page_bits is -1
    int64_t heads, d, dv;
    KVType type;
    bool latent;
};

static inline bool is_integer(KVType type) { return type == KVType::S8 || type == KVType::S16; }
static inline int64_t element_size(KVType type) { return type == KVType::F32 ? 4 : type == KVType::S8 ? 1 : 2; }
static inline uint8_t* head_of(const KVView& kv, int64_t page, int64_t head) {
    const int64_t place = page & ((int64_t{1} << kv.run_bits) - 1);
    return kv.base + kv.layer_at + (page >> kv.run_bits) * kv.run_stride + head * kv.head_stride + place * kv.page_stride;
}

// The page that holds a position, counted along its sequence, and the position's place in it. A division takes as long
// as a dozen products, and attention asks four times for each block.
static inline int64_t page_number(const KVView& kv, int64_t position) {
    return kv.page_bits < 0 ? position / kv.page_size : position >> kv.page_bits;
}
static inline int64_t place_in_page(const KVView& kv, int64_t position) {
    return kv.page_bits < 0 ? position % kv.page_size : position & (kv.page_size - 1);
}

struct BatchView {
    const int32_t* token_ids;
    const int32_t* positions;
    const int32_t* slots;
    const int32_t* query_start;
    const int32_t* context_lens;
    const int32_t* page_tables;
    const int32_t* sampled;
    int64_t tokens, sequences, sampled_rows, table_width;
    const int32_t* cross_lens; // of the encoder's pages; null where there is no encoder
    const int32_t* cross_tables;
    int64_t cross_width;
    const uint64_t* tree_masks; // [tokens][tree_words]; null where no sequence is a tree (kernels/trees.py)
    int64_t tree_words;
    const int32_t* sliding_slots; // slots and page_tables of the layers with a window; null where they share pages
    const int32_t* sliding_tables; // with the others
    const int32_t* rope_positions; // what rotation turns by: positions, where the batch brings no others
    const int32_t* replaced; // tokens whose rows replace_rows takes from replaced_rows; none where replaced_count is 0
    const float* replaced_rows; // [replaced_count, replaced_width]
    int64_t replaced_count, replaced_width;
    int64_t given_rows; // of the arrays of Rows::Given
};

static inline bool is_tree(const BatchView& b, int64_t s) { // every token of a tree sees itself
    return b.tree_masks && b.query_start[s] < b.query_start[s + 1] && b.tree_masks[b.query_start[s] * b.tree_words];
}

struct RotaryArgs {
    const float* qkv;
    float* q;
    const int32_t* positions;
    const int32_t* slots;
    KVView kv;
    int64_t heads;
    const float* cos; // [positions, rotary_dim / 2] or null
    const float* sin;
    int64_t rotary_dim;
    bool interleaved;
    const float* q_norm; // RMS gains, [d] of each head by itself or, if together, [heads * d]
    const float* k_norm;
    bool q_together, k_together;
    float eps;
};

struct LatentArgs { // ops.latent_append
    const float* q_latent; // [tokens, heads, dv]
    const float* q_rope;   // [tokens, heads, d - dv]
    const float* latent;   // [tokens, dv]
    const float* k_rope;   // [tokens, d - dv]
    float* q;              // [tokens, heads, d]
    const int32_t* positions;
    const int32_t* slots;
    KVView kv;
    int64_t heads;
    const float* cos; // [positions, (d - dv) / 2]
    const float* sin;
    bool interleaved;
};

struct AttentionArgs {
    const float* q;
    float* y;
    KVView kv;
    int64_t heads;
    float scale, softcap;
    int64_t window; // 0: none
    const float* slopes;
    const float* sinks;
    const int32_t* positions;
    const int32_t* context_lens;
    const int32_t* page_tables;
    int64_t table_width;
    bool causal; // otherwise a query sees its whole context
    const float* bias; // [heads][2 (reach + kRescale) + 1] by distance, its ends repeated kRescale times; or null
    int64_t reach;
    const uint64_t* tree_masks; // BatchView.tree_masks
    int64_t tree_words;
    bool near; // keys and values of few rows are asked for into the first-level cache, else into the second-level one
};

// One piece of attention: tokens [t0, t1) of a sequence, one KV head, splits [c0, c1).
// partial null: all splits are here, write y. Otherwise write each split's m, l and o to
// partial + ((row * splits) + split - first_split) * (dv_padded + 16): [o | m, l, ...].
// tree: the first position of the step that is a tree, INT64_MAX elsewhere. A token's positions from there on are its
// ancestors, which lie where the tokens of the step do; all before is what the item's tokens share.
// soon: the item that whoever computes this one is likely to compute next, or null.
struct AttentionItem {
    int64_t sequence, head, t0, t1, c0, c1;
    float* partial = nullptr;
    int64_t splits = 0, first_split = 0, tree = INT64_MAX;
    const AttentionItem* soon = nullptr;
};

} // namespace octavo
