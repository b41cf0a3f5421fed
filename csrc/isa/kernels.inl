// All kernels of one instruction set, in an unnamed namespace: every function has internal linkage,
// so no code compiled for one instruction set can be linked into another's path.

enum { kMaxHead = 1024 };
const int32_t kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Streaming one panel is bound by memory: ask for what comes a page and a half later.
SIMD void prefetch_block(const uint8_t* w, int64_t step) {
    for (int64_t i = 0; i < step; i += 64) prefetch_far(w + 6144 + i);
}

#include "math.inl"
#include "rows.inl"
#include "prepare.inl"
#include "sample.inl"
