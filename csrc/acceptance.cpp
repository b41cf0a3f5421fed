#include "acceptance.h"

#include <algorithm>
#include <cmath>

namespace octavo {
namespace {

// These are those of spec/acceptance.py, for drafts that tables make: both know the same chances.
constexpr int kSupports = 8;
constexpr double kRowMemory = 0.95, kAllMemory = 0.995, kSmallest = 0.04, kPrior = 2, kRowPrior = 3;

int counted_as(int support) { return std::min(support, kSupports); }

} // namespace

void Chances::add(const std::vector<bool>& hits, double memory) {
    if (hits.size() > seen.size()) seen.resize(hits.size()), right.resize(hits.size());
    for (size_t place = 0; place < hits.size(); ++place) {
        seen[place] = seen[place] * memory + 1;
        right[place] = right[place] * memory + (hits[place] ? 1 : 0);
    }
}

int32_t Acceptance::Followed::child(int32_t token) const {
    const size_t next = static_cast<size_t>(node + 1); // of a chain
    if (draft.parents.empty()) return next < draft.tokens.size() && draft.tokens[next] == token ? static_cast<int32_t>(next) : -1;
    for (size_t i = next; i < draft.tokens.size(); ++i)
        if (draft.parents[i] == node && draft.tokens[i] == token) return static_cast<int32_t>(i);
    return -1;
}

bool Acceptance::Followed::ended() const {
    if (draft.parents.empty()) return static_cast<size_t>(node + 1) == draft.tokens.size();
    return std::find(draft.parents.begin(), draft.parents.end(), node) == draft.parents.end();
}

bool Acceptance::Followed::follow(const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) {
        const int32_t next = child(token);
        if (next < 0) return true;
        hits[static_cast<size_t>(next)] = true;
        node = next;
    }
    return ended();
}

void Acceptance::start(int row) { rows_[row] = {}; }

bool Acceptance::follows(int row, int support) const { return rows_.at(row).followed.contains(counted_as(support)); }

void Acceptance::offered(int row, int support, DraftedTokens draft) {
    const size_t count = draft.tokens.size();
    rows_.at(row).followed.try_emplace(counted_as(support), Followed{.draft = std::move(draft), .hits = std::vector<bool>(count)});
}

int Acceptance::observe(int row, const std::vector<int32_t>& tokens) {
    const auto at = rows_.find(row);
    int best = -1;
    if (at == rows_.end()) return best;
    Row& state = at->second;
    for (auto each = state.followed.begin(); each != state.followed.end();) {
        auto& [support, followed] = *each;
        if (!followed.follow(tokens)) {
            ++each;
            continue;
        }
        all_[support].add(followed.hits, kAllMemory);
        state.own[support].add(followed.hits, kRowMemory);
        best = std::max(best, static_cast<int>(std::count(followed.hits.begin(), followed.hits.end(), true)));
        each = state.followed.erase(each);
    }
    return best;
}

void Acceptance::chances(int row, int support, size_t count, std::vector<Chance>& found) const {
    support = counted_as(support);
    const auto& own_by = rows_.at(row).own;
    const auto everyone = all_.find(support);
    const auto own = own_by.find(support);
    double guess = 0.5, most = 1;
    found.clear();
    for (size_t place = 0; place < count; ++place) {
        double right = guess * kPrior, seen = kPrior;
        if (everyone != all_.end() && place < everyone->second.seen.size())
            right += everyone->second.right[place], seen += everyone->second.seen[place];
        double mean = right / seen;
        if (own != own_by.end() && place < own->second.seen.size()) {
            const double times = own->second.seen[place];
            mean = (mean * kRowPrior + own->second.right[place]) / (kRowPrior + times);
            seen = std::min(seen, kRowPrior) + times;
        }
        most = std::min(mean, most);
        if (most < kSmallest) break;
        found.push_back({most, std::sqrt(most * (1 - most) / (seen + 1))});
        guess = most * 0.5;
    }
}

} // namespace octavo
