// What a program reads, with nothing computed: how fast memory gives it in the program's own phases and pieces.
#pragma once
#include <array>

#include "kernels.h"

namespace octavo {

// How far ahead of its use a line is asked for; 0: nobody asks, the hardware looks ahead.
constexpr std::array<int64_t, 4> kReadingAhead = {0, 2 << 10, 4 << 10, 8 << 10};

// These kernels, but that linear, screen and attention only read what they would compute with, each line once, rounding does
// nothing, and a head that screens chooses the first token. ahead: one of kReadingAhead. Throws std::invalid_argument.
Kernels reading(const Kernels& kernels, int64_t ahead);

// Bytes that such kernels have read so far, on all threads.
int64_t bytes_read();

} // namespace octavo
