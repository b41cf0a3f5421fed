// What the files of ops share; kernels/operations.py says what each op computes.
#pragma once
#include "call.h"
#include "cpu.h"

namespace octavo {

struct NormOf { // a norm that was folded into the op after it
    NormKind kind = NormKind::None;
    const float* gain = nullptr;
    const float* bias = nullptr;
    float eps = 0.0f;
};

// The argument "rotary"; None: nothing rotates, and cos is null.
struct RotaryTables {
    explicit RotaryTables(const Arguments& args);
    // Throws std::invalid_argument where the tables lack one of the batch's positions.
    void check(const BatchView& b) const;

    const float *cos, *sin;
    int64_t dim = 0, positions = 0;
    bool interleaved;
};

// Bytes that a phase begins with, of each thread: asked for before it does.
constexpr int64_t kFirstBytes = 16384;
// Into the second-level cache.
inline void ask_for_bytes(const uint8_t* at, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

// LinearArgs.near, of one row. The size of the first-level cache tells a Zen 5, whose 48 KB take what is asked for beside
// what is read, from the cores before it.
inline bool asks_near() { return first_cache_bytes() >= int64_t{48} << 10; }

// Scratch that prepare and linear of one weight share.
size_t linear_scratch_bytes(const Kernels& k, const Matrix& w);

struct LinearSpec {
    Buffer x, y;
    bool has_residual = false;
    Buffer residual{};
    Weights weight{};
    int64_t column = 0; // of y, where the output starts
    NormOf norm{};
    const float* bias = nullptr;
    Activation activation = Activation::None;
    float scale = 1.0f, softcap = 0.0f;
    int64_t prepared = 0; // arena offset of the prepared activations
};
std::unique_ptr<Op> make_linear(LinearSpec spec);
// Whether the largest of each row of y can be found without computing all of it; an op that does.
bool screens(const LinearSpec& spec);
std::unique_ptr<Op> make_head(LinearSpec spec, const Limits& limits);

} // namespace octavo
