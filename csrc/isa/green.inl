// Numbers of mt19937 (Matsumoto and Nishimura 1998), a block at a time: loops over arrays, which each instruction set's
// compiler turns into vectors, as it cannot what gives one number after the other.

SIMD uint32_t twisted(uint32_t high, uint32_t low) {
    const uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return y >> 1 ^ (-(y & 1u) & 0x9908b0dfu);
}

// The next kTwisterBlock numbers: the i-th modulo whole - i, where that is at least 2. A quotient is below 2^31, and further from the next whole number than a double of it is wrong. Conversions are of
// signed numbers, for which there are instructions everywhere.
SIMD void twister_remainders(uint32_t* state, int32_t whole, uint32_t* remainders) {
    constexpr int ahead = 397, rest = kTwisterBlock - ahead;
    for (int i = 0; i < rest; i++) state[i] = state[i + ahead] ^ twisted(state[i], state[i + 1]);
    for (int i = rest; i < kTwisterBlock - 1; i++) state[i] = state[i - rest] ^ twisted(state[i], state[i + 1]);
    state[kTwisterBlock - 1] = state[ahead - 1] ^ twisted(state[kTwisterBlock - 1], state[0]);
    for (int i = 0; i < kTwisterBlock; i++) {
        uint32_t y = state[i];
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c5680u;
        y ^= y << 15 & 0xefc60000u;
        y ^= y >> 18;
        const int32_t divisor = whole - i < 2 ? 2 : whole - i;
        const double number = (double)(int32_t)(y ^ 0x80000000u) + 2147483648.0;
        remainders[i] = y - (uint32_t)(int32_t)(number / (double)divisor) * (uint32_t)divisor;
    }
}

// Tokens in Id, so that a small vocabulary's order stays close to the core.
template <class Id> SIMD void first_places(uint32_t seed, int64_t vocab, int64_t count, Id* order, uint32_t* bits) {
    for (int64_t i = 0; i < vocab; i++) order[i] = (Id)i;
    uint32_t state[kTwisterBlock], places[kTwisterBlock];
    state[0] = seed;
    for (uint32_t i = 1; i < kTwisterBlock; i++) state[i] = 1812433253u * (state[i - 1] ^ state[i - 1] >> 30) + i;
    const int64_t swaps = count < vocab ? count : vocab - 1; // the last has no choice, and asks for no number
    for (int64_t start = 0; start < swaps; start += kTwisterBlock) {
        twister_remainders(state, (int32_t)(vocab - start), places);
        Id* here = order + start;
        const int64_t n = swaps - start < kTwisterBlock ? swaps - start : kTwisterBlock;
        for (int64_t i = 0; i < n; i++) { // nobody looks at here[i] again: it need not be written
            const Id token = here[i + places[i]];
            here[i + places[i]] = here[i];
            bits[token / 32] |= 1u << token % 32;
        }
    }
    if (count == vocab) bits[order[vocab - 1] / 32] |= 1u << order[vocab - 1] % 32;
}

void sample_green(uint32_t seed, int64_t vocab, int64_t count, void* order, uint32_t* bits) {
    if (vocab <= 1 << 16) first_places(seed, vocab, count, (uint16_t*)order, bits);
    else first_places(seed, vocab, count, (int32_t*)order, bits);
}
