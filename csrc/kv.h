// The pages of all layers, in runs of pages whose numbers follow each other:
//
//   pages 0 to n - 1: [layer 0: [head 0: [page 0: k | its scales | v | its scales][page 1: ...]...][head 1: ...]...]
//                     [layer 1: ...]...   pages n to 2n - 1: ...
//
// What attention reads of a run for one head is one stream from memory, where stretches of some kilobytes, a page's,
// come at some three quarters of the rate (benchmarks/kernels/page_reads.py). The pool gives a sequence pages that
// follow each other as long as it has such. A run's pages share what the system gives memory in, so that a run is
// touched as a whole, and is short beside the cache.
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
    size_t nbytes() const { return static_cast<size_t>(page_bytes_ * num_pages_); } // of its pages
    // Copy page first to page second for each pair; all are read before any is written.
    void copy_pages(const std::vector<std::pair<int64_t, int64_t>>& pairs);
    // Copy slot first to slot second for each pair, in their order, as they are stored.
    void move_slots(const std::vector<std::pair<int64_t, int64_t>>& pairs);
    int64_t num_pages() const { return num_pages_; }
    int64_t page_bytes() const { return page_bytes_; }
    // A page's bytes, [page_bytes()], layer by layer and head by head; and the reverse. Throws std::invalid_argument.
    void read_page(int64_t page, uint8_t* to) const;
    void write_page(int64_t page, const uint8_t* from);

private:
    int64_t num_pages_;
    bool sliding_; // pages of the layers with a window (BatchView.sliding_tables)
    std::vector<KVView> layers_;
    int64_t page_bytes_, run_bits_;
    Region region_;
};

} // namespace octavo
