// What the machine can do: the denominators of a roofline.
#pragma once
#include <cstddef>

#include "pool.h"

namespace octavo {

// Bytes read per second by all threads of the pool together, from a buffer of `bytes` (best of rounds).
double read_bandwidth(Pool& pool, size_t bytes, int rounds);

// Cycles per second of this core right now: a chain of dependent additions takes one cycle each.
double clock_rate();

} // namespace octavo
