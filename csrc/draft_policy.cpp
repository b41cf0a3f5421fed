#include "draft_policy.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace octavo {
namespace {

// These are those of spec/policy.py: both choose the same.
constexpr double kGain = 0.02, kProbed = 0.005, kAsked = 0.005, kPaid = 0.5, kCredit = 8, kFirst = 4;
constexpr double kAhead = 18, kForgotten = 64, kGathered = 8;
constexpr int kFailed = 8, kSeldom = 8, kRests = 32;

} // namespace

void DraftPolicy::start(int row, int most) {
    const double ahead = usual();
    rows_[row] = {.most = most, .ahead = ahead};
    to_ask_ += kFirst * asking_s_ / static_cast<double>(rows_.size());
    acceptance_.start(row);
}

void DraftPolicy::remove(int row) {
    rows_.erase(row);
    acceptance_.remove(row);
}

double DraftPolicy::usual() const {
    double all = 0;
    for (const auto& [_, state] : rows_) all += state.ahead;
    return all / static_cast<double>(std::max<size_t>(rows_.size(), 1));
}

DraftPolicy::Counts DraftPolicy::wanted(const std::vector<int>& rows) {
    Counts asked;
    for (const int row : rows) {
        Row& state = rows_.at(row);
        if (state.most <= 0) continue;
        if (state.skip > 0)
            --state.skip;
        else
            asked.emplace_back(row, state.most);
    }
    return asked;
}

int DraftPolicy::rest(const Load& load, double asking_s) {
    asking_s_ += (asking_s - asking_s_) / (asking_s_ != 0 ? kFailed : 1);
    to_ask_ = std::min(to_ask_, kCredit * asking_s_) - asking_s;
    const double earned = kAsked * costs_.seconds(load); // in a step
    const double owed = std::max(-to_ask_, 0.0) / earned;
    int steps = owed < kRests ? static_cast<int>(std::ceil(owed)) : kRests;
    int least_skip = std::numeric_limits<int>::max();
    for (const auto& [_, state] : rows_)
        if (state.most > 0) least_skip = std::min(least_skip, state.skip);
    if (least_skip != std::numeric_limits<int>::max()) steps = std::max(steps, least_skip);
    for (auto& [_, state] : rows_) state.skip = std::max(state.skip - steps, 0);
    // What a long rest does not pay for is forgiven: it was a bad moment.
    to_ask_ = std::max(to_ask_ + earned * (steps + 1), 0.0);
    return steps;
}

DraftPolicy::Counts DraftPolicy::choose(const std::vector<Offer>& offers, const Load& load) {
    std::vector<Chance> chances;
    std::vector<Acceptance::Chance> found;
    for (size_t i = 0; i < offers.size(); ++i) {
        acceptance_.chances(offers[i].row, offers[i].support, offers[i].count, found);
        for (const auto& each : found) chances.push_back({each.mean, -each.error, i, offers[i].row});
    }
    weigh(chances, load);
    const Best best = best_of(chances, offers, load);
    to_ask_ += kPaid * best.gained;
    std::vector<int> counts(offers.size());
    const auto count_first = [&](int64_t count) {
        for (int64_t i = 0; i < count; ++i) ++counts[chances[static_cast<size_t>(i)].offer];
    };
    count_first(best.count);
    for (size_t i = 0; i < offers.size(); ++i) { // a row whose drafts are worth nothing is asked less and less often
        Row& state = rows_.at(offers[i].row);
        state.failed = counts[i] ? 0 : state.failed + 1;
        if (state.failed) state.skip = std::min(state.failed / kFailed, kSeldom - 1);
    }
    if (best.count == 0 && best.least_lost > 0 && best.least_lost <= to_lose_) { // not worth it, but what does it cost by now?
        to_lose_ -= best.least_lost;
        count_first(best.least_at);
    }
    Counts chosen;
    for (size_t i = 0; i < offers.size(); ++i)
        if (counts[i]) chosen.emplace_back(offers[i].row, counts[i]);
    return chosen;
}

void DraftPolicy::weigh(std::vector<Chance>& chances, const Load& load) {
    if (load.sampled >= 2) { // who runs alone waits for nobody
        const double count = static_cast<double>(load.sampled), whole = costs_.seconds(load);
        const double one_less = costs_.seconds({load.tokens - 1, load.sampled - 1, load.pairs * (count - 1) / count});
        const double least = std::clamp(count * (whole - one_less) / whole, 0.0, 1.0), average = usual();
        for (Chance& each : chances) {
            const double worth = least + (1 - least) * std::exp(-std::max(rows_.at(each.row).ahead - average, 0.0) / kAhead);
            each.mean *= worth, each.less *= worth;
        }
    }
    std::sort(chances.begin(), chances.end(), [](const Chance& a, const Chance& b) {
        return std::tie(a.mean, a.less, a.row) > std::tie(b.mean, b.less, b.row);
    });
}

DraftPolicy::Best DraftPolicy::best_of(const std::vector<Chance>& chances, const std::vector<Offer>& offers, const Load& load) {
    struct Grown {
        int64_t length = 0;
        double error = 0; // of all its tokens, which are of one kind
    };
    std::vector<Grown> grown(offers.size());
    std::vector<double> pairs{load.pairs};
    for (const Chance& each : chances)
        pairs.push_back(pairs.back() + static_cast<double>(offers[each.offer].position + ++grown[each.offer].length));
    std::vector<StepCosts::Known> known;
    costs_.growing(load, pairs, known);
    const double plain_s = known[0].seconds, rate = static_cast<double>(load.sampled) / plain_s;
    double best_rate = rate, tokens = static_cast<double>(load.sampled), variance = 0;
    Best best;
    for (size_t i = 0; i < chances.size(); ++i) {
        double& error = grown[chances[i].offer].error;
        const double before = error;
        error = before - chances[i].less;
        variance += error * error - before * before;
        tokens += chances[i].mean;
        const auto [seconds, doubt] = known[i + 1];
        const double sure = tokens - std::sqrt(variance), lost = seconds - sure / rate;
        if (sure / seconds > std::max(best_rate, rate * (1 + kGain + doubt + known[0].error))) {
            best.count = static_cast<int64_t>(i) + 1;
            best_rate = sure / seconds;
            best.gained = sure / rate - seconds;
        }
        if (lost < best.least_lost) {
            best.least_lost = lost;
            best.least_at = static_cast<int64_t>(i) + 1;
        }
    }
    return best;
}

void DraftPolicy::observe(int row, const std::vector<int32_t>& tokens, int steps) {
    Row& state = rows_.at(row);
    state.ahead += static_cast<double>(tokens.size()) - steps - state.ahead * std::min(steps / kForgotten, 1.0);
    if (acceptance_.observe(row, tokens) > 1) state.failed = state.skip = 0; // better than by chance: a copy may have begun
}

void DraftPolicy::took(const Load& load, double seconds) {
    costs_.observe(load, seconds);
    to_lose_ = std::min(to_lose_ + kProbed * seconds, kGathered * seconds);
}

} // namespace octavo
