// The k largest of a row; of equals at the border, those that torch.topk takes on a CPU (kernels/top_k.py says why).
#pragma once
#include <cstdint>

namespace octavo {

struct Entry { // a value and where it stood
    float value;
    int32_t index;
};

// The k largest into room[0..k), the greatest first, of equals the lower index first. NaN is greater than all else.
void best_first(const float* x, int64_t n, int64_t k, Entry* room);

// Indices of the k largest, 0 < k <= n, ascending. room: n entries.
void top_k(const float* x, int64_t n, int64_t k, Entry* room, int32_t* pick);

} // namespace octavo
