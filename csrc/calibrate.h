// What the machine can do: the denominators of a roofline.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pool.h"

namespace octavo {

// Bytes read per second by all threads of the pool together, over and over from a buffer of `bytes`, rounded up to
// whole MiB: the fastest of several ways to read, of each its median over `rounds`, since the best moment of a memory
// that others use as well says nothing of the steps beside it, which are medians too. What a cache keeps from one pass
// to the next counts, as it does for a model's step that reads as many bytes.
double read_bandwidth(Pool& pool, size_t bytes, int rounds);

// Seconds that a line of 64 bytes takes one thread that reads it from its second-level cache and multiplies its numbers
// of 16 bits, eight at a time, `products` times: the least over `rounds`. Throws std::invalid_argument.
constexpr int kMostProducts = 32;
double line_seconds(int products, int rounds);

// Seconds in which the pool reads phases of pieces, each so many bytes, end to end: each thread begins with a
// share of a phase's pieces (Shares), and the next phase begins when all of them are read, as a program's phases do. Each line of a phase meets its
// `products`, as line_seconds has them. The fastest of several ways to read, of each its median over `rounds`. Throws
// std::invalid_argument.
double read_in_order(Pool& pool, const std::vector<std::vector<int64_t>>& phases, const std::vector<int>& products, int rounds);

// Cycles per second of this core right now: a chain of dependent steps takes one cycle each.
double clock_rate();

} // namespace octavo
