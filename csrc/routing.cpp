#include "routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace octavo {
namespace {

bool better(const Scored& a, const Scored& b) { return a.value > b.value || (std::isnan(a.value) && !std::isnan(b.value)); }

// The k largest, the greatest first, of equals the lower index first. NaN is greater than all else.
void best_first(const float* x, int64_t n, int64_t k, Scored* best) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        const Scored here{x[i], static_cast<int32_t>(i)};
        if (kept == k && !better(here, best[k - 1])) continue;
        int64_t at = kept < k ? kept++ : k - 1;
        for (; at > 0 && better(here, best[at - 1]); at--) best[at] = best[at - 1];
        best[at] = here;
    }
}

// Their indices, ascending.
void choose(const float* x, int64_t n, int64_t k, Scored* best, int32_t* pick) {
    best_first(x, n, k, best);
    for (int64_t i = 0; i < k; i++) pick[i] = best[i].index;
    std::sort(pick, pick + k);
}

// Takes the experts outside the best groups out of the choice. With a sigmoid they score less than any other, without
// one their probability becomes 0: where the best groups have no more than zeros to give, that is a tie.
void limit_to_groups(const Routing& r, const RoutingRoom& room, int64_t experts) {
    const int64_t size = experts / r.groups;
    for (int64_t g = 0; g < r.groups; g++) {
        best_first(room.score + g * size, size, r.group_top, room.best);
        room.worth[g] = 0.0f;
        for (int64_t i = 0; i < r.group_top; i++) room.worth[g] += room.best[i].value;
    }
    choose(room.worth, r.groups, r.top_groups, room.best, room.kept);
    const int32_t* kept = room.kept;
    for (int64_t g = 0; g < r.groups; g++) {
        if (kept != room.kept + r.top_groups && *kept == g) {
            kept++;
            continue;
        }
        const auto clear = [&](float* x, float to) { std::fill(x + g * size, x + (g + 1) * size, to); };
        clear(room.score, r.sigmoid ? -std::numeric_limits<float>::infinity() : 0.0f);
        if (!r.sigmoid) clear(room.p, 0.0f);
    }
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

void choose_experts(const Routing& r, const RoutingRoom& room, int64_t experts, int64_t k, bool renormalize,
                    int32_t* pick, float* shares) {
    for (int64_t e = 0; e < experts; e++) room.score[e] = r.bias ? room.p[e] + r.bias[e] : room.p[e];
    if (r.top_groups < r.groups) limit_to_groups(r, room, experts);
    choose(room.score, experts, k, room.best, pick);
    float sum = 1e-20f; // where all that were chosen are 0
    for (int64_t i = 0; i < k; i++) sum += room.p[pick[i]];
    for (int64_t i = 0; i < k; i++) {
        const float share = renormalize ? room.p[pick[i]] / sum : room.p[pick[i]];
        shares[i] = r.scale != 1.0f ? share * r.scale : share;
    }
}

} // namespace octavo
