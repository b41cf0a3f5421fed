#include "calibrate.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "memory.h"

namespace octavo {
namespace {

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Sweep {
    const uint64_t* data;
    size_t words;
    int threads;
    std::vector<uint64_t> sums;
};

void sweep(void* argument, int thread) {
    Sweep& s = *static_cast<Sweep*>(argument);
    const size_t begin = s.words * thread / s.threads, end = s.words * (thread + 1) / s.threads;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = begin; i + 8 <= end; i += 8) { // one cache line
        a ^= s.data[i] ^ s.data[i + 1];
        b ^= s.data[i + 2] ^ s.data[i + 3];
        c ^= s.data[i + 4] ^ s.data[i + 5];
        d ^= s.data[i + 6] ^ s.data[i + 7];
        __builtin_prefetch(s.data + i + 256);
    }
    s.sums[static_cast<size_t>(thread) * 8] = a ^ b ^ c ^ d;
}

} // namespace

double read_bandwidth(Pool& pool, size_t bytes, int rounds) {
    Region region(bytes, true);
    std::fill_n(region.data(), bytes, uint8_t{1}); // pages that were never written share one zero page
    Sweep s{reinterpret_cast<const uint64_t*>(region.data()), bytes / 8, pool.size(),
            std::vector<uint64_t>(static_cast<size_t>(pool.size()) * 8)};
    double best = 0.0;
    for (int i = 0; i < rounds; i++) {
        const double start = seconds();
        pool.run(sweep, &s);
        best = std::max(best, static_cast<double>(bytes) / (seconds() - start));
    }
    return best;
}

double clock_rate() {
    constexpr int kSteps = 20, kLoops = 200000;
    double best = 0.0;
    for (int round = 0; round < 5; round++) {
        const double start = seconds();
        uint64_t x = 1;
        for (int i = 0; i < kLoops; i++) {
            for (int j = 0; j < kSteps; j++) {
                x += 3;
                __asm__ volatile("" : "+r"(x)); // keeps the additions apart
            }
        }
        best = std::max(best, kSteps * static_cast<double>(kLoops) / (seconds() - start));
    }
    return best;
}

} // namespace octavo
