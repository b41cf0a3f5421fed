// Keys of int8 pages, and the queries that meet them, in another basis: each n of a head's d dimensions, n being the
// largest power of two that divides d, times Sylvester's Hadamard matrix. What a key has in a few large dimensions is
// spread over all of them, so that its one unit is smaller (Ashkboos et al. 2024, QuaRot). Products of such keys and
// queries are n times as large. The sums are those of the reference (kernels/reference_math.py), in its order.

template <int64_t H> SIMD void sums_and_differences(float* x, int64_t d) {
    for (int64_t i = 0; i < d; i += 2 * H)
        UNROLL for (int64_t j = 0; j < H; j++) {
            const float a = x[i + j], b = x[i + j + H];
            x[i + j] = a + b, x[i + j + H] = a - b;
        }
}

SIMD int64_t hadamard_size(int64_t d) { return d & -d; }

void hadamard(float* x, int64_t d) {
    const int64_t n = hadamard_size(d);
    if (n > 1) sums_and_differences<1>(x, d);
    if (n > 2) sums_and_differences<2>(x, d);
    if (n > 4) sums_and_differences<4>(x, d);
    if (n > 8) sums_and_differences<8>(x, d);
    for (int64_t h = 16; h < n; h *= 2)
        for (int64_t i = 0; i < d; i += 2 * h)
            for (int64_t j = i; j < i + h; j += 16) {
                const F a = load(x + j), b = load(x + j + h);
                store(x + j, a + b), store(x + j + h, a - b);
            }
}
