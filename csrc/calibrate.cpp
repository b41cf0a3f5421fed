#include "calibrate.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "memory.h"

namespace octavo {
namespace {

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double>& found) {
    const auto middle = found.begin() + static_cast<std::ptrdiff_t>(found.size() / 2);
    std::nth_element(found.begin(), middle, found.end());
    return *middle;
}

// Four cache lines in 16-byte words, the widest that every x86-64 and ARMv8 has: a core takes a line in fewer
// cycles than any memory delivers it, so that wider ones would read no faster.
using Word = uint64_t __attribute__((vector_size(16)));
constexpr size_t kLine = 64;

// Eight numbers of 16 bits, whose products cost what those of attention and of the linears do.
using Numbers = uint16_t __attribute__((vector_size(16)));
constexpr int kFactors = kMostProducts / 4;
volatile uint16_t odd = 3; // so that no compiler knows the factors

// Reads lines, and multiplies WORK times eight numbers for each. What a line of `data` asks for lies `ahead` bytes on; 0:
// the hardware's prefetcher alone.
template <int WORK> Word read_piece(const uint8_t* data, size_t bytes, size_t ahead) {
    Numbers factors[kFactors], sums[4]{};
    for (int i = 0; i < kFactors; i++) factors[i] = Numbers{} + static_cast<uint16_t>(odd + 2 * i);
    for (size_t i = 0; i < bytes; i += kLine) {
        const Numbers* line = reinterpret_cast<const Numbers*>(data + i);
        _Pragma("GCC unroll 4") for (int word = 0; word < 4; word++) {
            const Numbers x = line[word];
            const int products = WORK / 4 + (word < WORK % 4);
            if (products == 0) sums[word] ^= x;
            // (Were they added up, x f + x g would be x (f + g).)
            _Pragma("GCC unroll 8") for (int k = 0; k < products; k++) sums[word] ^= x * factors[k];
        }
        if (ahead != 0) __builtin_prefetch(data + i + ahead);
    }
    return reinterpret_cast<Word>((sums[0] ^ sums[1]) ^ (sums[2] ^ sums[3]));
}

using Reader = Word (*)(const uint8_t*, size_t, size_t);
template <int... WORK> constexpr std::array<Reader, sizeof...(WORK)> readers(std::integer_sequence<int, WORK...>) {
    return {read_piece<WORK>...};
}
constexpr auto kReaders = readers(std::make_integer_sequence<int, kMostProducts + 1>());

Reader reader_of(int products) {
    if (products < 0 || products > kMostProducts) throw std::invalid_argument("so many products of a line are not measured");
    return kReaders[static_cast<size_t>(products)];
}

} // namespace

double read_bandwidth(Pool& pool, size_t bytes, int rounds) {
    // No one way of reading is the fastest on every memory: kernels read weights by panels that threads take in
    // turns, and KV by pages, asking some kilobytes ahead. The ceiling is the fastest of all these ways.
    constexpr size_t kPieces[] = {size_t{64} << 10, size_t{1} << 20};
    constexpr size_t kAhead[] = {0, 1 << 10, 2 << 10, 4 << 10, 8 << 10};
    constexpr size_t kLargest = kPieces[1];
    const size_t whole = std::max<size_t>(1, (bytes + kLargest - 1) / kLargest) * kLargest;
    Region region(whole, true);
    std::fill_n(region.data(), whole, uint8_t{1}); // pages never written share one zero page
    std::atomic<uint64_t> sum{0};                  // so that no read is left out
    std::map<std::pair<size_t, size_t>, std::vector<double>> rates; // of each way, in every round
    for (int round = 0; round < rounds; round++) {
        for (const size_t piece : kPieces) {
            for (const size_t ahead : kAhead) {
                const double start = seconds();
                parallel(pool, static_cast<int>(whole / piece), 1, [&](int i) {
                    const Word read = read_piece<0>(region.data() + static_cast<size_t>(i) * piece, piece, ahead);
                    sum += read[0] ^ read[1];
                });
                rates[{piece, ahead}].push_back(static_cast<double>(whole) / (seconds() - start));
            }
        }
    }
    double best = 0.0;
    for (auto& [way, found] : rates) best = std::max(best, median(found));
    return best;
}

double line_seconds(int products, int rounds) {
    constexpr size_t kBytes = size_t{256} << 10, kAhead = 1 << 10;
    const Reader read = reader_of(products);
    Region region(kBytes, true);
    std::fill_n(region.data(), kBytes, uint8_t{1});
    double best = std::numeric_limits<double>::infinity();
    uint64_t sum = 0;
    for (int round = 0; round <= rounds; round++) { // the first one fills the cache
        const double start = seconds();
        for (size_t at = 0; at < kBytes; at += kBytes / 64) sum += read(region.data() + at, kBytes / 64, kAhead)[0];
        if (round > 0) best = std::min(best, seconds() - start);
    }
    volatile uint64_t kept = sum; // so that no read is left out
    (void)kept;
    return best / static_cast<double>(kBytes / kLine);
}

double read_in_order(Pool& pool, const std::vector<std::vector<int64_t>>& phases, const std::vector<int>& products, int rounds) {
    constexpr size_t kAhead[] = {0, 1 << 10, 2 << 10, 4 << 10, 8 << 10};
    struct Piece {
        size_t at, bytes;
    };
    struct Job {
        std::vector<std::vector<Piece>> phases;
        std::vector<Reader> readers;
        std::unique_ptr<Shares[]> claims;
        int shares = 1;
        const uint8_t* data = nullptr;
        size_t ahead = 0;
        std::atomic<uint64_t> sum{0};
    } job;
    if (products.size() != phases.size()) throw std::invalid_argument("each phase has its number of products");
    for (const int each : products) job.readers.push_back(reader_of(each));
    size_t whole = 0;
    for (const auto& phase : phases) {
        job.phases.emplace_back();
        for (const int64_t bytes : phase) {
            if (bytes < 1) throw std::invalid_argument("a piece has at least one byte");
            job.phases.back().push_back({.at = whole, .bytes = static_cast<size_t>(bytes)});
            whole += (static_cast<size_t>(bytes) + kLine - 1) / kLine * kLine;
        }
    }
    if (whole == 0 || rounds < 1) throw std::invalid_argument("there is nothing to read");
    Region region(whole, true);
    std::fill_n(region.data(), whole, uint8_t{1});
    job.data = region.data();
    job.claims = std::make_unique<Shares[]>(job.phases.size());
    job.shares = Shares::of(pool.size());
    const auto work = [](void* argument, int thread) {
        Job& j = *static_cast<Job*>(argument);
        for (size_t phase = 0; phase < j.phases.size(); phase++) {
            const auto& pieces = j.phases[phase];
            const int n = static_cast<int>(pieces.size());
            for (Shares::Piece piece{}; j.claims[phase].claim(n, j.shares, thread, &piece);) {
                const Piece& p = pieces[static_cast<size_t>(piece.number)];
                const Word read = j.readers[phase](j.data + p.at, p.bytes, j.ahead);
                j.sum += read[0] ^ read[1];
                j.claims[phase].finish(1, n);
            }
            j.claims[phase].await(n);
        }
    };
    double best = std::numeric_limits<double>::infinity();
    for (const size_t ahead : kAhead) {
        job.ahead = ahead;
        std::vector<double> found;
        for (int round = 0; round <= rounds; round++) { // the first one warms up
            for (size_t phase = 0; phase < job.phases.size(); phase++) job.claims[phase].reset();
            const double start = seconds();
            pool.run(work, &job);
            if (round > 0) found.push_back(seconds() - start);
        }
        best = std::min(best, median(found));
    }
    return best;
}

double clock_rate() {
    constexpr int kSteps = 20, kLoops = 200000;
    double best = 0.0;
    for (int round = 0; round < 5; round++) {
        const double start = seconds();
        uint64_t x = 1, y = 3;
        __asm__ volatile("" : "+r"(y)); // a number that nobody knows: Intel's cores since 2021 add known ones four to a cycle
        for (int i = 0; i < kLoops; i++) {
            _Pragma("GCC unroll 20") // or the loop's branch takes longer than its step
            for (int j = 0; j < kSteps; j++) {
                x ^= y;
                __asm__ volatile("" : "+r"(x)); // keeps the steps apart
            }
        }
        best = std::max(best, kSteps * static_cast<double>(kLoops) / (seconds() - start));
    }
    return best;
}

} // namespace octavo
