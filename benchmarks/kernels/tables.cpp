// Weights of two bits times activations of eight, from the first-level cache: multiplied, and looked up.
//
// products: 16 rows (8 with AVX2) and 4 columns a register, as the kernels have them. tables: for 4 columns
// a table of the 16 sums that one bit of each weight can make, as in T-MAC (Wei et al., 2024), exact in 16
// bits: two lookups, of low and high bytes. Neither side applies scales, and the tables are there already.
// Prints JSON: picoseconds a multiply-add, all threads together, best of many rounds.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int kRows = 64, kColumns = 512, kRounds = 4000, kTries = 40;

struct Data {
    std::vector<uint8_t> weights = std::vector<uint8_t>(kRows * kColumns); // [row][column], 0 to 3
    std::vector<int8_t> x = std::vector<int8_t>(kColumns);
    std::vector<uint8_t> packed, planes; // as products and tables read them
    std::vector<uint8_t> tables;         // [group of 4 columns][bit][low, high byte][16]
    std::vector<int32_t> wanted = std::vector<int32_t>(kRows);
};

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
constexpr int kLanes = 16, kBytes = 64;
const char* kName = "avx512vnni";
#else
constexpr int kLanes = 8, kBytes = 32;
const char* kName = "avx2";
#endif

Data make(unsigned seed) {
    Data d;
    for (auto& w : d.weights) w = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 30);
    for (auto& v : d.x) v = (int8_t)((int)((seed = seed * 1664525u + 1013904223u) >> 24) % 127);
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kColumns; ++c) d.wanted[r] += d.weights[r * kColumns + c] * d.x[c];
    const auto weight = [&](int row, int column) { return d.weights[row * kColumns + column]; };
    for (int first = 0; first < kRows; first += kLanes) // 16 columns of some rows: one register
        for (int c = 0; c < kColumns; c += 16)
            for (int b = 0; b < kBytes; ++b) {
                uint8_t byte = 0;
                for (int part = 0; part < 4; ++part) byte |= weight(first + b / 4, c + 4 * part + b % 4) << (2 * part);
                d.packed.push_back(byte);
            }
    for (int first = 0; first < kRows; first += kBytes) // 4 columns of as many rows as a register has bytes
        for (int c = 0; c < kColumns; c += 4)
            for (int row = 0; row < kBytes; ++row) {
                uint8_t low = 0, high = 0;
                for (int i = 0; i < 4; ++i) {
                    low |= (weight(first + row, c + i) & 1) << i;
                    high |= (weight(first + row, c + i) >> 1) << i;
                }
                d.planes.push_back(low | (high << 4));
            }
    for (int c = 0; c < kColumns; c += 4)
        for (int bit = 0; bit < 2; ++bit) {
            int16_t sums[16];
            for (int at = 0; at < 16; ++at) {
                int sum = 0;
                for (int i = 0; i < 4; ++i) sum += (at >> i & 1) * d.x[c + i];
                sums[at] = (int16_t)(sum << bit);
            }
            for (int at = 0; at < 16; ++at) d.tables.push_back((uint8_t)(sums[at] & 255));
            for (int at = 0; at < 16; ++at) d.tables.push_back((uint8_t)((uint16_t)sums[at] >> 8));
        }
    return d;
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

void products(const Data& d, int32_t* out) {
    const __m512i three = _mm512_set1_epi8(3);
    const uint8_t* w = d.packed.data();
    for (int first = 0; first < kRows; first += kLanes) {
        __m512i a = _mm512_setzero_si512(), b = a;
        for (int c = 0; c < kColumns; c += 16, w += 64) {
            int x[4];
            __builtin_memcpy(x, d.x.data() + c, 16);
            const __m512i v = _mm512_loadu_si512(w);
            a = _mm512_dpbusd_epi32(a, _mm512_and_si512(v, three), _mm512_set1_epi32(x[0]));
            b = _mm512_dpbusd_epi32(b, _mm512_and_si512(_mm512_srli_epi16(v, 2), three), _mm512_set1_epi32(x[1]));
            a = _mm512_dpbusd_epi32(a, _mm512_and_si512(_mm512_srli_epi16(v, 4), three), _mm512_set1_epi32(x[2]));
            b = _mm512_dpbusd_epi32(b, _mm512_and_si512(_mm512_srli_epi16(v, 6), three), _mm512_set1_epi32(x[3]));
        }
        _mm512_storeu_si512(out + first, _mm512_add_epi32(a, b));
    }
}

void tables(const Data& d, int32_t* out) {
    const __m512i nibble = _mm512_set1_epi8(15);
    const uint8_t* w = d.planes.data();
    const auto table = [](const uint8_t* at) {
        return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)at));
    };
    __m512i wide[4] = {};
    for (int start = 0; start < kColumns; start += 64) { // as many as 16 bits hold
        const uint8_t* t = d.tables.data() + start / 4 * 64;
        __m512i a = _mm512_setzero_si512(), b = a;
        for (int c = 0; c < 64; c += 4, t += 64, w += 64) {
            const __m512i v = _mm512_loadu_si512(w);
            const __m512i i0 = _mm512_and_si512(v, nibble), i1 = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
            const __m512i l0 = _mm512_shuffle_epi8(table(t), i0), h0 = _mm512_shuffle_epi8(table(t + 16), i0);
            const __m512i l1 = _mm512_shuffle_epi8(table(t + 32), i1), h1 = _mm512_shuffle_epi8(table(t + 48), i1);
            a = _mm512_add_epi16(a, _mm512_add_epi16(_mm512_unpacklo_epi8(l0, h0), _mm512_unpacklo_epi8(l1, h1)));
            b = _mm512_add_epi16(b, _mm512_add_epi16(_mm512_unpackhi_epi8(l0, h0), _mm512_unpackhi_epi8(l1, h1)));
        }
        const __m512i both[2] = {a, b};
        for (int i = 0; i < 4; ++i) {
            const __m512i of = both[i / 2];
            const __m256i half = i & 1 ? _mm512_extracti64x4_epi64(of, 1) : _mm512_castsi512_si256(of);
            wide[i] = _mm512_add_epi32(wide[i], _mm512_cvtepi16_epi32(half));
        }
    }
    int32_t sums[4][16];
    for (int i = 0; i < 4; ++i) _mm512_storeu_si512(sums[i], wide[i]);
    for (int i = 0; i < 64; ++i) out[i % 32 / 8 * 16 + i / 32 * 8 + i % 8] = sums[i / 16][i % 16];
}

#else

void products(const Data& d, int32_t* out) {
    const __m256i three = _mm256_set1_epi8(3), one = _mm256_set1_epi16(1);
    const uint8_t* w = d.packed.data();
    for (int first = 0; first < kRows; first += kLanes) {
        __m256i total = _mm256_setzero_si256();
        for (int start = 0; start < kColumns; start += 64) { // as many as 16 bits hold
            __m256i a = _mm256_setzero_si256(), b = a;
            for (int c = start; c < start + 64; c += 16, w += 32) {
                int x[4];
                __builtin_memcpy(x, d.x.data() + c, 16);
                const __m256i v = _mm256_loadu_si256((const __m256i*)w);
                const auto dot = [&](__m256i part, int at) {
                    return _mm256_maddubs_epi16(_mm256_and_si256(part, three), _mm256_set1_epi32(x[at]));
                };
                a = _mm256_add_epi16(a, _mm256_add_epi16(dot(v, 0), dot(_mm256_srli_epi16(v, 2), 1)));
                const __m256i third = dot(_mm256_srli_epi16(v, 4), 2), fourth = dot(_mm256_srli_epi16(v, 6), 3);
                b = _mm256_add_epi16(b, _mm256_add_epi16(third, fourth));
            }
            total = _mm256_add_epi32(total, _mm256_madd_epi16(_mm256_add_epi16(a, b), one));
        }
        _mm256_storeu_si256((__m256i*)(out + first), total);
    }
}

void tables(const Data& d, int32_t* out) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const uint8_t* w = d.planes.data();
    const auto table = [](const uint8_t* at) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)at));
    };
    for (int first = 0; first < kRows; first += kBytes) {
        __m256i wide[4] = {};
        for (int start = 0; start < kColumns; start += 64) { // as many as 16 bits hold
            const uint8_t* t = d.tables.data() + start / 4 * 64;
            __m256i a = _mm256_setzero_si256(), b = a;
            for (int c = 0; c < 64; c += 4, t += 64, w += 32) {
                const __m256i v = _mm256_loadu_si256((const __m256i*)w);
                const __m256i i0 = _mm256_and_si256(v, nibble);
                const __m256i i1 = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
                const __m256i l0 = _mm256_shuffle_epi8(table(t), i0), h0 = _mm256_shuffle_epi8(table(t + 16), i0);
                const __m256i l1 = _mm256_shuffle_epi8(table(t + 32), i1), h1 = _mm256_shuffle_epi8(table(t + 48), i1);
                a = _mm256_add_epi16(a, _mm256_add_epi16(_mm256_unpacklo_epi8(l0, h0), _mm256_unpacklo_epi8(l1, h1)));
                b = _mm256_add_epi16(b, _mm256_add_epi16(_mm256_unpackhi_epi8(l0, h0), _mm256_unpackhi_epi8(l1, h1)));
            }
            const __m256i both[2] = {a, b};
            for (int i = 0; i < 4; ++i) {
                const __m256i of = both[i / 2];
                const __m128i half = i & 1 ? _mm256_extracti128_si256(of, 1) : _mm256_castsi256_si128(of);
                wide[i] = _mm256_add_epi32(wide[i], _mm256_cvtepi16_epi32(half));
            }
        }
        int32_t sums[4][8];
        for (int i = 0; i < 4; ++i) _mm256_storeu_si256((__m256i*)sums[i], wide[i]);
        for (int i = 0; i < 32; ++i) out[first + i % 16 / 8 * 16 + i / 16 * 8 + i % 8] = sums[i / 8][i % 8];
    }
}

#endif

using Kernel = void (*)(const Data&, int32_t*);

// Picoseconds a multiply-add of all threads together; each has data of its own.
double rate(Kernel kernel, int threads) {
    double best = 1e30;
    std::vector<Data> data;
    for (int t = 0; t < threads; ++t) data.push_back(make(t + 1));
    for (const Data& d : data) {
        int32_t out[kRows];
        kernel(d, out);
        if (!std::equal(out, out + kRows, d.wanted.begin())) {
            std::fprintf(stderr, "tables: wrong sums\n");
            std::exit(1);
        }
    }
    for (int i = 0; i < kTries; ++i) {
        std::vector<std::thread> workers;
        const auto start = std::chrono::steady_clock::now();
        for (const Data& d : data)
            workers.emplace_back([&d, kernel] {
                int32_t out[kRows];
                for (int round = 0; round < kRounds; ++round) {
                    kernel(d, out);
                    asm volatile("" : : "r"(out) : "memory");
                }
            });
        for (auto& each : workers) each.join();
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        best = std::min(best, taken.count() * 1e12 / ((double)kRows * kColumns * kRounds * threads));
    }
    return best;
}

} // namespace

int main(int, char** arguments) {
    const int threads = std::atoi(arguments[1]);
    std::printf("{\"isa\": \"%s\", \"products_ps\": %.3f, \"tables_ps\": %.3f}\n", kName, rate(products, threads),
                rate(tables, threads));
}
