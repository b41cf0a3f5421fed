// A watermark's green list: kernels/green_list.py says what it is.
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sample.h"

namespace octavo {

void green_list(uint32_t seed, int64_t vocab, int64_t count, uint32_t* bits) {
    if (vocab < 1 || vocab > INT32_MAX || count < 0 || count > vocab) throw std::invalid_argument("no such part of a vocabulary");
    std::mt19937 random(seed);
    std::vector<int32_t> order(static_cast<size_t>(vocab));
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = 0; i < count; i++) {
        if (i < vocab - 1) // the last has no choice, and asks for no number
            std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(i + random() % static_cast<uint32_t>(vocab - i))]);
        const auto token = static_cast<uint32_t>(order[static_cast<size_t>(i)]);
        bits[token / 32] |= 1u << token % 32;
    }
}

} // namespace octavo
