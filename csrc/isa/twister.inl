// Numbers of mt19937 (Matsumoto and Nishimura 1998), a block at a time: loops over arrays, which each instruction set's
// compiler turns into vectors, as it cannot what gives one number after the other.

SIMD uint32_t twisted(uint32_t high, uint32_t low) {
    const uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return y >> 1 ^ (-(y & 1u) & 0x9908b0dfu);
}

// A quotient is below 2^31, and further from the next whole number than a double of it is wrong. Conversions are of
// signed numbers, for which there are instructions everywhere.
void twister_remainders(uint32_t* state, int32_t whole, uint32_t* remainders) {
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
