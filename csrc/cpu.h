// Which instruction sets this CPU and its operating system run.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels.h"

namespace octavo {

// Best first; "generic" is always last.
std::vector<const Kernels*> supported_kernels();

// By name, or "auto" for the best. Throws std::invalid_argument naming what this CPU has.
const Kernels* choose_kernels(const std::string& isa);

// Bytes of a core's first-level data cache; where the system does not say, what every CPU of today has.
int64_t first_cache_bytes();

} // namespace octavo
