// A watermark's green list: kernels/green_list.py says what it is.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "sample.h"

namespace octavo {
namespace {

// Tokens in Id, so that a small vocabulary's order stays close to the core.
template <class Id>
void choose(const SamplePasses& pass, uint32_t seed, int64_t vocab, int64_t count, uint32_t* bits) {
    thread_local std::vector<Id> kept;
    kept.resize(static_cast<size_t>(vocab));
    Id* order = kept.data();
    for (int64_t i = 0; i < vocab; i++) order[i] = static_cast<Id>(i);
    uint32_t state[kTwisterBlock], places[kTwisterBlock];
    state[0] = seed;
    for (uint32_t i = 1; i < kTwisterBlock; i++) state[i] = 1812433253u * (state[i - 1] ^ state[i - 1] >> 30) + i;
    const int64_t swaps = std::min(count, vocab - 1); // the last has no choice, and asks for no number
    for (int64_t start = 0; start < swaps; start += kTwisterBlock) {
        pass.twister_remainders(state, static_cast<int32_t>(vocab - start), places);
        Id* here = order + start;
        const int64_t n = std::min<int64_t>(kTwisterBlock, swaps - start);
        for (int64_t i = 0; i < n; i++) { // nobody looks at here[i] again: it need not be written
            const Id token = here[i + places[i]];
            here[i + places[i]] = here[i];
            bits[token / 32] |= 1u << token % 32;
        }
    }
    if (count == vocab) bits[order[vocab - 1] / 32] |= 1u << order[vocab - 1] % 32;
}

} // namespace

void green_list(const SamplePasses& pass, uint32_t seed, int64_t vocab, int64_t count, uint32_t* bits) {
    if (vocab < 1 || vocab > INT32_MAX || count < 0 || count > vocab) throw std::invalid_argument("no such part of a vocabulary");
    std::fill_n(bits, (vocab + 31) / 32, 0u);
    if (vocab <= 1 << 16) choose<uint16_t>(pass, seed, vocab, count, bits);
    else choose<int32_t>(pass, seed, vocab, count, bits);
}

void Sampler::make(const std::vector<GreenList>& lists) {
    if (lists.empty()) return;
    parallel(*pool_, static_cast<int>(lists.size()), 1, [&](int i) {
        const GreenList& each = lists[static_cast<size_t>(i)];
        green_list(*kernels_->sample, each.seed, vocab_, each.count, each.bits);
    });
}

} // namespace octavo
