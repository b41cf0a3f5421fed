// Noise, the tokens that are kept, and the race among them: sampling/noise.py, logits.py and
// distribution.py, step by step in the same order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "sample.h"

namespace octavo {
namespace {

constexpr int kBinShift = 19; // leaves exponent and 4 bits: 16 bins to a factor of 2
constexpr int kBins = (0x3f800000 >> kBinShift) + 1; // weights are at most 1
constexpr int kDistanceBins = (0x7f800000 >> kBinShift) + 1;

int bin_of(float weight) {
    uint32_t bits;
    std::memcpy(&bits, &weight, sizeof bits);
    return static_cast<int>(bits >> kBinShift);
}

// Philox4x32-10.
void philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c[0], p1 = static_cast<uint64_t>(0xCD9E8D57u) * c[2];
        const uint32_t c1 = c[1], c3 = c[3];
        c[0] = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
        c[1] = static_cast<uint32_t>(p1);
        c[2] = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
        c[3] = static_cast<uint32_t>(p0);
    }
}

// Adds up one chunk's weights in lanes.
class LaneSum {
public:
    void add(int64_t id, double number) { lane_[id % kSumLanes] += number; }
    double take() {
        for (int half = kSumLanes / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) lane_[i] += lane_[i + half];
        const double sum = lane_[0];
        for (double& lane : lane_) lane = 0.0;
        return sum;
    }

private:
    double lane_[kSumLanes] = {};
};

// body(chunk, begin, end, sum) for each chunk that has candidates; summed is number(weight).
template <class Body, class Number> void each_chunk(const Candidates& c, Number number, Body body) {
    LaneSum lanes;
    for (int64_t i = 0, begin = 0; i < c.size; begin = i) {
        const int64_t chunk = c.ids[i] / kChunk;
        for (; i < c.size && c.ids[i] / kChunk == chunk; i++) lanes.add(c.ids[i], number(c.weights[i]));
        body(chunk, begin, i, lanes.take());
    }
}

double as_it_is(float weight) { return static_cast<double>(weight); }
double with_its_log(float weight) { return as_it_is(weight) * log_of(as_it_is(weight)); }

// The first `count` in order of weight, largest first, of equals the lowest ids; threshold: the smallest of them.
void keep_largest(Candidates& c, int64_t count, float threshold) {
    int64_t above = 0, kept = 0;
    for (int64_t i = 0; i < c.size; i++) above += c.weights[i] > threshold;
    int64_t ties = count - above;
    for (int64_t i = 0; i < c.size; i++) {
        const float w = c.weights[i];
        const bool tie = w == threshold;
        c.ids[kept] = c.ids[i];
        c.weights[kept] = w;
        kept += (w > threshold) | (tie & (ties > 0)); // no branch: nobody could predict it
        ties -= tie;
    }
    c.size = kept;
    c.count = count;
}

// Who arrives first; rate 0 never does.
struct Race {
    double best = std::numeric_limits<double>::infinity();
    int64_t winner = 0;
    void enter(int64_t runner, double noise, double rate) {
        const double time = noise / rate;
        if (time < best) best = time, winner = runner;
    }
};

} // namespace

double log_of(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    int exponent = static_cast<int>(bits >> 52) - 1022;
    bits = (bits & 0xfffffffffffffull) | 0x3fe0000000000000ull; // 1/2 <= m < 1
    double m;
    std::memcpy(&m, &bits, sizeof m);
    if (m < 0.7071067811865476) m += m, exponent--;
    const double e = exponent, s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = z * (2.0 / 21);
    for (int odd = 19; odd > 1; odd -= 2) p = (p + 2.0 / odd) * z;
    p = (p + 2.0) * s;
    return e * 0.6931471803691238 + (p + e * 1.9082149292705877e-10);
}

RaceNoise::RaceNoise(const SampleParams& params, int64_t position, Stream stream)
    : key_{static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32)},
      position_{static_cast<uint32_t>(position), static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32)},
      sample_(params.sample_index), stream_(static_cast<uint32_t>(stream)) {}

double RaceNoise::variate(uint32_t level, int64_t i) {
    const uint32_t block = stream_ | level << 4 | static_cast<uint32_t>(i / 2) << 8;
    if (block != block_) {
        const uint32_t counter[4] = {position_[0], position_[1], sample_, block};
        std::memcpy(words_, counter, sizeof words_);
        philox(words_, key_[0], key_[1]);
        block_ = block;
    }
    const uint32_t* w = words_ + 2 * (i % 2);
    const double u = (static_cast<double>(w[0] >> 5) * 0x1p26 + static_cast<double>(w[1] >> 6)) * 0x1p-53;
    return -log_of(1.0 - u);
}

double total_of(const Candidates& c) {
    double sum = 0.0;
    each_chunk(c, as_it_is, [&](int64_t, int64_t, int64_t, double chunk) { sum += chunk; });
    return sum;
}

float kth_largest(float* x, int64_t size, int64_t k) {
    std::nth_element(x, x + (k - 1), x + size, std::greater<float>());
    return x[k - 1];
}

void keep_top_k(Candidates& c, int64_t k, std::vector<float>& work) {
    if (k >= c.count) return;
    if (k >= c.size) { // all that weigh anything
        c.count = k;
        return;
    }
    work.assign(c.weights, c.weights + c.size);
    keep_largest(c, k, kth_largest(work.data(), c.size, k));
}

float top_p_floor(double top_p, double whole, int64_t count) {
    return static_cast<float>((1 - top_p) * whole / static_cast<double>(count) * (1 - 1e-6));
}

float top_p_guess(double top_p, double whole) {
    const auto guess = static_cast<float>(std::min(1.0, (1 - top_p) * whole / 8192));
    uint32_t bits;
    std::memcpy(&bits, &guess, sizeof bits);
    bits = bits >> kBinShift << kBinShift;
    float edge;
    std::memcpy(&edge, &bits, sizeof edge);
    return edge;
}

// Bins are summed from the largest weights down, so those below the one that reaches the mass, and
// whether they were listed at all, change no bit.
bool keep_top_p(Candidates& c, double top_p, double whole, float floor, std::vector<float>& work) {
    const double mass = top_p * whole;
    double sums[kBins];
    int64_t counts[kBins];
    const int lowest = bin_of(floor);
    std::fill(sums + lowest, sums + kBins, 0.0);
    std::fill(counts + lowest, counts + kBins, 0);
    int highest = lowest;
    for (int64_t i = 0; i < c.size; i++) {
        if (c.weights[i] < floor) continue;
        const int bin = bin_of(c.weights[i]);
        sums[bin] += static_cast<double>(c.weights[i]);
        counts[bin]++;
        highest = std::max(highest, bin);
    }
    double all = 0.0;
    for (int bin = highest; bin >= lowest; bin--) all += sums[bin];
    if (all < mass && floor > top_p_floor(top_p, whole, c.count)) return false;
    const double goal = std::min(mass, all);
    int crossing = highest;
    int64_t before = 0;
    double reached = sums[highest], left_out = 0.0; // with the crossing bin, without it
    while (reached < goal) {
        before += counts[crossing--];
        left_out = reached;
        reached += sums[crossing];
    }
    work.clear();
    for (int64_t i = 0; i < c.size; i++)
        if (c.weights[i] >= floor && bin_of(c.weights[i]) == crossing) work.push_back(c.weights[i]);
    std::sort(work.begin(), work.end(), std::greater<float>());
    size_t last = 0;
    double inside = 0.0;
    for (; last < work.size(); last++) {
        inside += static_cast<double>(work[last]);
        if (inside + left_out >= mass) break;
    }
    last = std::min(last, work.size() - 1);
    keep_largest(c, before + static_cast<int64_t>(last) + 1, work[last]);
    return true;
}

// sampling/logits.py, _typical.
void keep_typical(Candidates& c, double share, std::vector<float>& work) {
    double whole = 0.0, logs = 0.0;
    each_chunk(c, as_it_is, [&](int64_t, int64_t, int64_t, double chunk) { whole += chunk; });
    each_chunk(c, with_its_log, [&](int64_t, int64_t, int64_t, double chunk) { logs += chunk; });
    const double mean = logs / whole;
    std::vector<double> sums(kDistanceBins);
    work.clear();
    for (int64_t i = 0; i < c.size; i++) {
        work.push_back(static_cast<float>(std::abs(log_of(as_it_is(c.weights[i])) - mean)));
        sums[static_cast<size_t>(bin_of(work.back()))] += as_it_is(c.weights[i]);
    }
    double all = 0.0;
    for (const double sum : sums) all += sum;
    const double mass = share * whole, goal = std::min(mass, all);
    int crossing = 0;
    double reached = sums[0], before = 0.0; // with the crossing bin, without it
    while (reached < goal) {
        before = reached;
        reached += sums[static_cast<size_t>(++crossing)];
    }
    std::vector<std::pair<float, float>> inside; // distance, weight
    for (int64_t i = 0; i < c.size; i++)
        if (bin_of(work[static_cast<size_t>(i)]) == crossing) inside.emplace_back(work[static_cast<size_t>(i)], c.weights[i]);
    std::stable_sort(inside.begin(), inside.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    double sum = 0.0;
    size_t last = 0;
    for (; last < inside.size(); last++) {
        sum += as_it_is(inside[last].second);
        if (sum + before >= mass) break;
    }
    const float farthest = inside[std::min(last, inside.size() - 1)].first;
    int64_t kept = 0;
    for (int64_t i = 0; i < c.size; i++) {
        c.ids[kept] = c.ids[i];
        c.weights[kept] = c.weights[i];
        kept += work[static_cast<size_t>(i)] <= farthest;
    }
    c.size = c.count = kept;
}

int32_t draw_dense(const float* weights, const double* sums, int64_t vocab, RaceNoise& noise) {
    Race chunks, tokens;
    for (int64_t c = 0; c * kChunk < vocab; c++)
        if (sums[c] > 0.0) chunks.enter(c, noise.chunk(c), sums[c]);
    const int64_t start = chunks.winner * kChunk;
    for (int64_t i = 0; i < kChunk && start + i < vocab; i++)
        if (weights[start + i] > 0.0f) tokens.enter(start + i, noise.place(i), static_cast<double>(weights[start + i]));
    return static_cast<int32_t>(tokens.winner);
}

int32_t draw_among(const Candidates& c, RaceNoise& noise) {
    Race chunks, tokens;
    int64_t begin = 0, end = 0;
    each_chunk(c, as_it_is, [&](int64_t chunk, int64_t from, int64_t to, double sum) {
        if (!(sum > 0.0)) return;
        const double before = chunks.best;
        chunks.enter(chunk, noise.chunk(chunk), sum);
        if (chunks.best != before) begin = from, end = to;
    });
    for (int64_t i = begin; i < end; i++)
        if (c.weights[i] > 0.0f)
            tokens.enter(c.ids[i], noise.place(c.ids[i] % kChunk), static_cast<double>(c.weights[i]));
    return static_cast<int32_t>(tokens.winner);
}

} // namespace octavo
