// Memory straight from the system: zeroed, touched lazily, in huge pages where that helps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace octavo {

class Region {
public:
    // Throws std::bad_alloc.
    explicit Region(size_t bytes, bool huge_pages);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    uint8_t* data() const { return data_; }
    size_t size() const { return size_; }

private:
    void* mapping_ = nullptr;
    size_t mapped_ = 0;
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

// Weights live end to end in large regions, so that many small matrices share huge pages.
class WeightArena {
public:
    struct Piece {
        std::shared_ptr<Region> owner;
        uint8_t* data;
    };
    // planned: what is packed here has its place and size, but is not written, and touches no memory.
    // integer_scales: Kernels' of who will read.
    WeightArena(bool planned, bool integer_scales) : planned_(planned), integer_scales_(integer_scales) {}
    bool planned() const { return planned_; }
    bool integer_scales() const { return integer_scales_; }
    // 64-byte aligned. Safe to call from several threads.
    Piece take(size_t bytes);

private:
    const bool planned_, integer_scales_;
    std::mutex mutex_;
    std::shared_ptr<Region> region_;
    size_t used_ = 0;
};

} // namespace octavo
