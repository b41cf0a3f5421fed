#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace octavo {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kArena = size_t{64} << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

} // namespace

Region::Region(size_t bytes, bool huge_pages) : size_(std::max<size_t>(bytes, 64)) {
    const bool huge = huge_pages && size_ >= kHuge;
    mapped_ = round_up(size_, 4096) + (huge ? kHuge : 0);
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::bad_alloc();
    auto address = reinterpret_cast<uintptr_t>(mapping_);
    data_ = reinterpret_cast<uint8_t*>(huge ? round_up(address, kHuge) : address);
#ifdef MADV_HUGEPAGE
    if (huge) madvise(data_, round_up(size_, 4096), MADV_HUGEPAGE); // advice: a refusal costs speed only
#endif
}

Region::~Region() { munmap(mapping_, mapped_); }

WeightArena::Piece WeightArena::take(size_t bytes) {
    bytes = round_up(std::max<size_t>(bytes, 1), 64);
    std::lock_guard lock(mutex_);
    if (!region_ || used_ + bytes > region_->size()) {
        region_ = std::make_shared<Region>(std::max(bytes, kArena), true);
        used_ = 0;
    }
    Piece piece{region_, region_->data() + used_};
    used_ += bytes;
    return piece;
}

} // namespace octavo
