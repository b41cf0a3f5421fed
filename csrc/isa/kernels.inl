// All kernels of one instruction set, in an unnamed namespace: every function has internal linkage,
// so no code compiled for one instruction set can be linked into another's path.

enum { kMaxHead = 1024 };
const int32_t kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Where a tile leaves one token's sums of each block without their scales; -1: of none.
struct Kept {
    int64_t token = -1; // of the tile
    uint8_t* to = nullptr; // kKeptBytes a block, in int16 lanes as the tile has them
    const int32_t* starts = nullptr; // what the sums began with, `stride` apart
    int64_t stride = 0;
};

// How scales and minima are said: in f16, in f32, or as whole steps of their group's f16 (types.h: K4 to C4).
enum Tables : int { kHalf, kSingle, kSteps };
// What a block has beside its scales, and the bytes of its tables: its group's, and its own steps.
enum Minima : int { kNoMinima, kMinima, kZeros };
constexpr int64_t tables_of(int tables, int parts, int minima) {
    const int64_t one = table_bytes(tables == kSingle);
    return one * (tables == kSteps ? 1 : parts) + (minima == kMinima ? one : minima == kZeros ? (int64_t)kPanel : 0);
}
constexpr int64_t steps_of(int tables, int parts, int minima) { return tables == kSteps ? (parts + (minima != kNoMinima)) * (int64_t)kPanel : 0; }
// Where a panel's blocks are: each group's tables lie behind its first one's values (types.h). Not GROUPED: each has its own.
template <bool GROUPED> struct Blocks {
    const uint8_t *w, *tables = nullptr;
    int64_t group, left = 1; // of the group, this one counted
    inline __attribute__((always_inline)) void begin(int64_t bytes) { // of its values
        if (!GROUPED) tables = w + bytes;
        else if (--left == 0) tables = w + bytes, left = group;
    }
    inline __attribute__((always_inline)) void next(int64_t bytes, int64_t size) { w += bytes + (!GROUPED || w + bytes == tables ? size : 0); }
};

// Memory to ask for while a panel is computed, so many bytes with each of its blocks: a burst of requests would wait.
// near: into the first-level cache, or else the second (LinearArgs.near).
struct Ahead {
    const uint8_t* at;
    int64_t each;
    bool near;
};
SIMD void prefetch_bytes(const uint8_t* at, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) prefetch_far(at + i);
}
template <int C> SIMD void prefetch_next(Ahead& a) { // beside a block of C tokens
    if (__builtin_expect(a.each == 0, 1)) return;
    if (C == 1 && a.near) {
        for (int64_t i = 0; i < a.each; i += 64) prefetch(a.at + i);
    } else {
        prefetch_bytes(a.at, a.each);
    }
    a.at += a.each;
}

#include "math.inl"
#include "codes.inl"
#include "rows.inl"
#include "prepare.inl"
#include "cut.inl"
#include "green.inl"
#include "sample.inl"
