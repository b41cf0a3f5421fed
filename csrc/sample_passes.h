// The sampler's passes over one row of logits, one set per instruction set (isa/sample.inl).
//
// A row is cut into chunks of 256 tokens; a pass takes any range of them, given by its first token's
// addresses and its number of tokens. What a chunk gives never depends on the range.
#pragma once
#include <cstdint>

namespace octavo {

constexpr int64_t kChunk = 256, kSumLanes = 16;
constexpr int kTwisterBlock = 624; // numbers that mt19937 makes at a time, and its state

struct SamplePasses {
    // maxima[c] = largest of chunk c, or NaN where the chunk holds a NaN or +inf.
    void (*maxima)(const float* z, int64_t count, float* maxima);
    // -inf where bit t % 32 of word t / 32 is clear.
    void (*mask)(float* z, const uint32_t* mask, int64_t count);
    // + delta where the bit is set.
    void (*boost)(float* z, const uint32_t* bits, float delta, int64_t count);
    // The same to `lifted`, and its maxima.
    void (*lift)(const float* z, const uint32_t* bits, float delta, int64_t count, float* lifted, float* maxima);
    // w = exp((z - peak) * inverse), and each chunk's sum. May work in place. Where a chunk's sum is 0, z is not read
    // and w not written.
    void (*weights)(const float* z, const float* maxima, int64_t count, float peak, float inverse, float* w,
                    double* sums);
    // Each chunk's sum of exp(z - its maximum).
    void (*sums)(const float* z, const float* maxima, int64_t count, double* sums);
    // w = exp((z - peak) * inverse), for any tokens.
    void (*exp)(const float* z, int64_t count, float peak, float inverse, float* w);
    // Writes to ids those i with x[i] >= threshold (which is finite), plus first; returns how many. May
    // write up to kSumLanes numbers past the last.
    int64_t (*at_least)(const float* x, int64_t count, float threshold, int32_t first, int32_t* ids);
    // Sets the bits of a green list's tokens. order: room for `vocab` numbers, of 16 bits if they suffice, else of 32.
    void (*green)(uint32_t seed, int64_t vocab, int64_t count, void* order, uint32_t* bits);
};

} // namespace octavo
