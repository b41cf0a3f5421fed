// Checkpoint rows to the panels of types.h, in parallel.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "memory.h"
#include "pool.h"
#include "types.h"

namespace octavo {

// A strided table of scales or minima: [rows, groups] of f16 or f32, of zero points of bytes. data null: absent.
struct Table {
    const uint8_t* data = nullptr;
    int64_t row_stride = 0, column_stride = 0; // bytes
    bool wide = false;                         // f32
};

// Rows of one checkpoint matrix; strides in bytes, elements of a block (or of a float row) adjacent.
struct Source {
    const uint8_t* values = nullptr;
    int64_t rows = 0, row_stride = 0, block_stride = 0;
    Table scale, minimum;
};

struct PackedMatrix {
    Matrix view{};
    std::vector<std::shared_ptr<Region>> owners;
    std::vector<int32_t> order;
    size_t nbytes = 0;
};

// Stack the sources along their rows. U4 (U5) sources without minima get -8 (-16) scale where others have them
// (that needs wide, to be exact). How the tables are is said by what of `as` concerns them: wide, minima, zeros, group;
// gated and layout are its, too. order: Matrix::order, or empty. after_slice, if any, is called by this thread between slices of 8 MB: what
// was read so far may be given back to the system. Throws std::invalid_argument for shapes that cannot be.
std::shared_ptr<PackedMatrix> pack(Pool& pool, WeightArena& arena, const Matrix& as, const std::vector<Source>& sources,
                                   std::vector<int32_t> order, const std::function<void()>& after_slice = {});

// Bytes of Activations for m rows of k elements, and the arrays in memory of that size,
// for weights of that layout.
size_t activation_bytes(Layout layout, int64_t m, int64_t k);
Activations activations_at(uint8_t* memory, Layout layout, int64_t m, int64_t k, int tile);

} // namespace octavo
