// The pages of all layers: page-major, so that a request's pages lie close together and one copy
// moves a page of every layer.
//
//   page 0: [layer 0: [head 0: k | its scales | v | its scales][head 1: ...]...][layer 1: ...]...   page 1: ...
//
// What attention reads of a page for one head is one stream from memory.
#pragma once
#include <utility>
#include <vector>

#include "memory.h"
#include "types.h"

namespace octavo {

struct KVShape {
    int64_t heads, d, dv;
    KVType type;
    bool latent; // V is the first dv dimensions of K, and is not stored
};

class KVCache {
public:
    // Throws std::invalid_argument, std::bad_alloc.
    KVCache(const std::vector<KVShape>& layers, int64_t num_pages, int64_t page_size, bool sliding = false);
    // Where a batch says that K and V of these layers go, and lie. Null: the batch does not.
    const int32_t* slots(const BatchView& b) const { return sliding_ ? b.sliding_slots : b.slots; }
    const int32_t* tables(const BatchView& b) const { return sliding_ ? b.sliding_tables : b.page_tables; }
    const KVView& layer(size_t index) const { return layers_.at(index); }
    // Throws std::invalid_argument unless all of a batch's slots exist.
    void check_slots(const BatchView& b, const KVView& kv) const;
    size_t nbytes() const { return static_cast<size_t>(page_stride_ * num_pages_); }
    // Copy page first to page second for each pair; all are read before any is written.
    void copy_pages(const std::vector<std::pair<int64_t, int64_t>>& pairs);
    // Copy slot first to slot second for each pair, in their order, as they are stored.
    void move_slots(const std::vector<std::pair<int64_t, int64_t>>& pairs);
    // Every page's bytes, one page after the other.
    uint8_t* data() const { return region_.data(); }
    int64_t num_pages() const { return num_pages_; }
    int64_t page_bytes() const { return page_stride_; }

private:
    static int64_t plan(const std::vector<KVShape>& layers, int64_t page_size, std::vector<KVView>& views);

    int64_t num_pages_;
    bool sliding_; // pages of the layers with a window (BatchView.sliding_tables)
    std::vector<KVView> layers_;
    int64_t page_stride_;
    Region region_;
};

} // namespace octavo
