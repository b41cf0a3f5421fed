#include "routing.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace octavo {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Index of the largest; ties, and NaN, go to the lower one. What was taken is kNever already.
int64_t largest(const float* x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best] || (x[best] == kNever && x[i] != kNever)) best = i;
    return best;
}

// A group's worth: the sum of its `top` best, the best first. Takes them out of x.
float worth(float* x, int64_t n, int64_t top) {
    float sum = 0.0f;
    for (int64_t i = 0; i < top; i++) {
        const int64_t best = largest(x, n);
        sum += x[best];
        x[best] = kNever;
    }
    return sum;
}

// Experts outside the best groups become kNever. scratch: `experts` floats.
void limit_to_groups(const Routing& r, float* score, int64_t experts, float* scratch) {
    const int64_t size = experts / r.groups;
    std::copy(score, score + experts, scratch);
    for (int64_t g = 0; g < r.groups; g++) scratch[g] = worth(scratch + g * size, size, r.group_top);
    for (int64_t i = 0; i < r.top_groups; i++) scratch[largest(scratch, r.groups)] = kNever; // chosen
    for (int64_t g = 0; g < r.groups; g++)
        if (scratch[g] != kNever) std::fill(score + g * size, score + (g + 1) * size, kNever);
}

} // namespace

void check_routing(const Routing& r, int64_t experts, int64_t top_k) {
    if (top_k < 1 || top_k > experts) throw std::invalid_argument("top_k exceeds the experts");
    if (r.groups < 1 || experts % r.groups) throw std::invalid_argument("experts must lie in groups of one size");
    if (r.top_groups < 1 || r.top_groups > r.groups) throw std::invalid_argument("top_groups exceeds the groups");
    const int64_t size = experts / r.groups;
    if (r.group_top < 1 || r.group_top > size) throw std::invalid_argument("group_top exceeds a group");
    if (top_k > r.top_groups * size) throw std::invalid_argument("top_k exceeds the experts of top_groups groups");
}

void choose_experts(const Routing& r, const float* p, int64_t experts, int64_t top_k, bool renormalize, float* score,
                    int32_t* pick, float* shares) {
    for (int64_t e = 0; e < experts; e++) score[e] = r.bias ? p[e] + r.bias[e] : p[e];
    if (r.top_groups < r.groups) limit_to_groups(r, score, experts, score + experts);
    for (int64_t i = 0; i < top_k; i++) {
        pick[i] = static_cast<int32_t>(largest(score, experts));
        score[pick[i]] = kNever;
    }
    std::sort(pick, pick + top_k);
    float sum = 0.0f;
    for (int64_t i = 0; i < top_k; i++) sum += p[pick[i]];
    for (int64_t i = 0; i < top_k; i++) {
        const float share = renormalize ? p[pick[i]] / sum : p[pick[i]];
        shares[i] = r.scale != 1.0f ? share * r.scale : share;
    }
}

} // namespace octavo
