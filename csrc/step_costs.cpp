#include "step_costs.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace octavo {
namespace {

// These are those of spec/costs.py: both know the same seconds.
constexpr double kFast = 8, kSlow = 64, kForgotten = 16384, kOutlier = 0.3, kFirstOutlier = 0.7;
constexpr int64_t kAsked = 4096; // counts whose values are kept: more than a step has

int64_t bucket(int64_t count) {
    return count <= 4 ? count : 4 + static_cast<int64_t>(std::ceil(2 * std::log2(static_cast<double>(count) / 4) - 1e-9));
}

} // namespace

StepCosts::Curve::Curve(const Points& points) {
    if (points.empty()) throw std::invalid_argument("no step was measured");
    for (const auto& [count, value] : points) counts_.push_back(count), values_.push_back(value);
}

double StepCosts::Curve::at(int64_t count) {
    if (count < 0 || count >= kAsked) return between(count);
    const size_t place = static_cast<size_t>(count);
    if (place >= asked_.size()) asked_.resize(place + 1, -1.0);
    if (asked_[place] < 0) asked_[place] = between(count);
    return asked_[place];
}

double StepCosts::Curve::between(int64_t count) const {
    const size_t found = static_cast<size_t>(std::lower_bound(counts_.begin(), counts_.end(), count) - counts_.begin());
    if (found < counts_.size() && counts_[found] == count) return values_[found];
    if (counts_.size() == 1) return values_[0];
    const size_t i = std::min(std::max<size_t>(found, 1), counts_.size() - 1);
    const double slope = (values_[i] - values_[i - 1]) / static_cast<double>(counts_[i] - counts_[i - 1]);
    return std::max(values_[i - 1] + slope * static_cast<double>(count - counts_[i - 1]), 0.0);
}

double StepCosts::Size::left(int64_t step) const { return std::pow(0.5, static_cast<double>(step - last) / kForgotten); }

StepCosts::StepCosts(const Points& tokens, const Points& sampled, double pair_s) : tokens_(tokens), sampled_(sampled), pair_s_(pair_s) {}

double StepCosts::seconds(const Load& load) {
    std::vector<Known> found;
    growing(load, {load.pairs}, found);
    return found[0].seconds;
}

void StepCosts::growing(const Load& load, const std::vector<double>& pairs, std::vector<Known>& found) {
    int64_t tokens = load.tokens, sampled = load.sampled;
    std::pair<int64_t, int64_t> before{-1, -1};
    double factor = 1, error = 0;
    found.clear();
    for (const double attended : pairs) {
        const std::pair at{bucket(tokens), bucket(sampled)};
        if (at != before) {
            before = at;
            double differs = 0;
            error = 0;
            if (const auto known = sizes_.find(at); known != sizes_.end()) {
                const Size& size = known->second;
                differs = size.mean * size.left(step_);
                error = size.spread / std::sqrt(std::min(size.count, kSlow) + kFast);
            }
            factor = std::exp(drift_ + differs);
        }
        found.push_back({(tokens_.at(tokens) + sampled_.at(sampled) + pair_s_ * attended) * factor, error});
        ++tokens, ++sampled;
    }
}

void StepCosts::observe(const Load& load, double seconds) {
    const double table = measured_at_start(load);
    if (!(seconds > 0 && table > 0)) return;
    ++step_;
    Size& size = sizes_[{bucket(load.tokens), bucket(load.sampled)}];
    const double left = size.left(step_), differs = size.mean * left;
    size.count = size.count * left + 1;
    const double most = size.count > kFast ? kOutlier : kFirstOutlier;
    const double beyond = std::clamp(std::log(seconds / table) - drift_ - differs, -most, most);
    // Of the first steps of a size their difference learns most, of later ones the drift.
    size.mean = differs + beyond / std::min(size.count + 1, kSlow);
    size.last = step_;
    size.spread += (std::abs(beyond) - size.spread) / std::min(size.count, kSlow);
    if (size.count > kFast) drift_ += beyond / kFast;
}

} // namespace octavo
