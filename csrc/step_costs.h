// How long a step takes, from what it computes: spec/costs.py says how, and does the same in Python.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace octavo {

// spec.costs.Load
struct Load {
    int64_t tokens = 0, sampled = 0;
    double pairs = 0;
};

class StepCosts {
public:
    using Points = std::map<int64_t, double>;
    // Seconds and how far, relatively, they may be off.
    struct Known {
        double seconds, error;
    };

    // Points do not fall (spec.costs.CostTable.points). Throws std::invalid_argument where a function has none.
    StepCosts(const Points& tokens, const Points& sampled, double pair_s);

    double seconds(const Load& load);
    // Of this load and of those with 1, 2, ... more tokens that are drawn from, which attend to so many pairs.
    void growing(const Load& load, const std::vector<double>& pairs, std::vector<Known>& found);
    void observe(const Load& load, double seconds);

private:
    // A measured function of a count: straight between two points, and on from the last two.
    class Curve {
    public:
        explicit Curve(const Points& points);
        double at(int64_t count);

    private:
        double between(int64_t count) const;
        std::vector<int64_t> counts_;
        std::vector<double> values_, asked_; // asked_: by count, negative where nobody has asked yet
    };
    struct Size {
        double count = 0, mean = 0, spread = 0;
        int64_t last = 0;

        double left(int64_t step) const;
    };

    double measured_at_start(const Load& load) { return tokens_.at(load.tokens) + sampled_.at(load.sampled) + pair_s_ * load.pairs; }

    Curve tokens_, sampled_;
    double pair_s_, drift_ = 0;
    int64_t step_ = 0;
    std::map<std::pair<int64_t, int64_t>, Size> sizes_;
};

} // namespace octavo
