// A watermark's green list: kernels/green_list.py says what it is.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "sample.h"

namespace octavo {
void green_list(const SamplePasses& pass, uint32_t seed, int64_t vocab, int64_t count, uint32_t* bits) {
    if (vocab < 1 || vocab > INT32_MAX || count < 0 || count > vocab) throw std::invalid_argument("no such part of a vocabulary");
    thread_local std::vector<int32_t> order;
    order.resize(static_cast<size_t>(vocab));
    std::fill_n(bits, (vocab + 31) / 32, 0u);
    pass.green(seed, vocab, count, order.data(), bits);
}

void Sampler::make(const std::vector<GreenList>& lists) {
    if (lists.empty()) return;
    parallel(*pool_, static_cast<int>(lists.size()), 1, [&](int i) {
        const GreenList& each = lists[static_cast<size_t>(i)];
        green_list(*kernels_->sample, each.seed, vocab_, each.count, each.bits);
    });
}

} // namespace octavo
