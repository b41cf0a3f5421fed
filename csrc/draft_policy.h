// How many tokens of each row's draft a step verifies: spec/policy.py (Auto) says how, and does the same in Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "acceptance.h"
#include "step_costs.h"

namespace octavo {

class DraftPolicy {
public:
    // A row's draft, of which the policy already knows what it is followed by (Acceptance).
    struct Offer {
        int row, support;
        size_t count;
        int64_t position; // tokens known of the row, which each drafted one attends to
    };
    using Counts = std::vector<std::pair<int, int>>; // (row, tokens)

    explicit DraftPolicy(StepCosts costs) : costs_(std::move(costs)) {}

    void start(int row, int most);
    void remove(int row);
    Counts wanted(const std::vector<int>& rows);
    bool follows(int row, int support) const { return acceptance_.follows(row, support); }
    void offered(int row, int support, DraftedTokens draft) { acceptance_.offered(row, support, std::move(draft)); }
    Counts choose(const std::vector<Offer>& offers, const Load& load);
    int rest(const Load& load, double asking_s);
    void observe(int row, const std::vector<int32_t>& tokens, int steps);
    void took(const Load& load, double seconds);

private:
    struct Row {
        int most = 0, failed = 0, skip = 0;
        double ahead = 0;
    };
    struct Chance {
        double mean, less; // less: its standard error, negative
        size_t offer;
        int row;
    };
    struct Best {
        int64_t count = 0;
        double least_lost = std::numeric_limits<double>::infinity();
        int64_t least_at = 0;
        double gained = 0;
    };

    double usual() const;
    void weigh(std::vector<Chance>& chances, const Load& load);
    Best best_of(const std::vector<Chance>& chances, const std::vector<Offer>& offers, const Load& load);

    StepCosts costs_;
    Acceptance acceptance_;
    std::map<int, Row> rows_;
    double to_lose_ = 0, to_ask_ = std::numeric_limits<double>::infinity(), asking_s_ = 0;
};

} // namespace octavo
