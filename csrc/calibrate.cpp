#include "calibrate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "memory.h"

namespace octavo {
namespace {

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr size_t kPiece = size_t{1} << 20;

uint64_t read_piece(const uint64_t* data) {
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i < kPiece / 8; i += 8) { // one cache line
        a ^= data[i] ^ data[i + 1];
        b ^= data[i + 2] ^ data[i + 3];
        c ^= data[i + 4] ^ data[i + 5];
        d ^= data[i + 6] ^ data[i + 7];
        __builtin_prefetch(data + i + 256);
    }
    return a ^ b ^ c ^ d;
}

} // namespace

double read_bandwidth(Pool& pool, size_t bytes, int rounds) {
    const size_t pieces = std::max<size_t>(1, bytes / kPiece);
    Region region(pieces * kPiece, true);
    std::fill_n(region.data(), region.size(), uint8_t{1}); // pages never written share one zero page
    std::atomic<uint64_t> sum{0};                          // so that no read is left out
    double best = 0.0;
    for (int i = 0; i < rounds; i++) {
        const double start = seconds();
        parallel(pool, static_cast<int>(pieces), 4, [&](int piece) {
            sum += read_piece(reinterpret_cast<const uint64_t*>(region.data() + static_cast<size_t>(piece) * kPiece));
        });
        best = std::max(best, static_cast<double>(region.size()) / (seconds() - start));
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
