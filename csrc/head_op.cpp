// The head, where a step may want no more of its logits than the largest: from upper bounds that five of a weight's
// eight bits give (isa/screen.inl) follows which panels can hold it, and only these are computed.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "ops.h"

namespace octavo {
namespace {

constexpr int64_t kLearned = 32;       // rows from which follows what is usual
constexpr int64_t kSteps = 16;         // over which the bounds' part of the weights is computed then
constexpr int64_t kLongestPause = 256; // steps
constexpr int64_t kWorth = 8;          // one panel in so many costs by rows what bounds save

// What a step holds of its rows, beside their logits.
class Rounded {
public:
    Rounded(const Matrix& w, int64_t rows) : k_(w.k), panels_(w.panels), memory_(share_out(nullptr, rows), false) {
        share_out(memory_.data(), rows);
    }
    // Its activations, as integers and their blocks' factors.
    int8_t* q(int64_t row) const { return q_ + row * k_; }
    float* d(int64_t row) const { return d_ + row * blocks(); }
    // ScreenArgs'.
    float* upper(int64_t row) const { return upper_ + row * panels_; }
    int32_t* starts() const { return starts_; }
    float* norms() const { return norms_; }
    float* parts() const { return parts_; }

    // From the panel of activations that row r is in.
    void take(const Activations& from, int64_t r) const {
        const int64_t tile = tile_of(from.tiles, r), start = tile_start(from.tiles, tile), c = tile_size(from.tiles, tile);
        for (int64_t i = 0; i < k_ / 4; i++) std::memcpy(q(r) + i * 4, from.q + start * k_ + (i * c + r - start) * 4, 4);
        for (int64_t b = 0; b < blocks(); b++) d(r)[b] = from.d[start * blocks() + b * c + r - start];
    }
    void find_norm(const Kernels& kernels, const Tiles& tiles, const ScreenBounds& bounds, int64_t r) const {
        const int64_t tile = tile_of(tiles, r), start = tile_start(tiles, tile);
        kernels.screen_row(q(r), d(r), bounds, k_, tile_size(tiles, tile), starts_ + start * blocks() + r - start, parts_ + r, norms_ + r);
    }

private:
    int64_t blocks() const { return k_ / kBlock; }
    size_t share_out(uint8_t* memory, int64_t rows) { // bytes of all
        size_t used = 0;
        auto take = [&](auto*& array, int64_t each) {
            if (memory) array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(memory + used);
            used += (static_cast<size_t>(rows * each) * sizeof(*array) + 63) / 64 * 64;
        };
        take(q_, k_), take(d_, blocks()), take(starts_, blocks()), take(norms_, 1), take(parts_, 1), take(upper_, panels_);
        return used;
    }

    int64_t k_, panels_;
    Region memory_; // touched as far as batches reach
    int8_t* q_ = nullptr;
    int32_t* starts_ = nullptr;
    float *d_ = nullptr, *norms_ = nullptr, *parts_ = nullptr, *upper_ = nullptr;
};

// What bounds need to know of the weights, and of what their inputs usually are: learned from the first rows that are
// decoded, as no file tells. No result depends on it.
class Bounds {
public:
    explicit Bounds(const Matrix& w) : w_(w) {}
    bool known() const { return learned_ == w_.panels; }
    const ScreenBounds& view() const { return view_; }
    float largest() const { return largest_; }
    // Panels [first, second) of the weights are to be learned in this step.
    std::pair<int64_t, int64_t> due() const { return {learned_, due_}; }

    // Before a step: `rows` of the last one, and what was learned in it.
    void begin(const Rounded& rounded, int64_t rows) {
        if (known()) return;
        for (; learned_ < due_; learned_++) {
            const float size = sizes_[static_cast<size_t>(learned_)];
            largest_ = size <= largest_ || std::isnan(largest_) ? largest_ : size;
        }
        if (seen_ < kLearned) return see(rounded, rows);
        due_ = std::min(learned_ + (w_.panels + kSteps - 1) / kSteps, w_.panels);
    }
    void learn(const Step& s, int64_t begin, int64_t end, uint8_t* scratch) {
        s.kernels->screen_bounds(w_, view_, begin, end, scratch);
    }

private:
    void see(const Rounded& rounded, int64_t rows) {
        const auto k = static_cast<size_t>(w_.k);
        for (int64_t r = 0; r < rows && seen_ < kLearned; r++) {
            const float* d = rounded.d(r);
            if (!std::all_of(d, d + w_.k / kBlock, [](float x) { return x < 1e15f; })) continue; // nor NaN
            for (int64_t i = 0; i < w_.k; i++) rows_.push_back(static_cast<float>(rounded.q(r)[i]) * d[i / kBlock]);
            seen_++;
        }
        if (seen_ < kLearned) return;
        direction_.resize(k), usual_.resize(k);
        for (size_t i = 0; i < rows_.size(); i++) direction_[i % k] += rows_[i];
        scale(direction_, dot(direction_.data(), direction_.data(), k), true);
        for (const float* x = rows_.data(); x < rows_.data() + rows_.size(); x += k) {
            const float part = dot(x, direction_.data(), k);
            for (size_t i = 0; i < k; i++) usual_[i] += std::fabs(x[i] - part * direction_[i]);
        }
        float sum = 0.0f;
        for (float x : usual_) sum += x;
        scale(usual_, sum / static_cast<float>(k), false); // to a mean of 1, and not to 0 anywhere
        for (float& x : usual_) x += 1e-3f;
        float norm = 0.0f;
        for (size_t i = 0; i < k; i++) norm += direction_[i] * direction_[i] / usual_[i];
        rows_ = {};
        errors_.resize(static_cast<size_t>(w_.panels * kPanel));
        along_.resize(errors_.size());
        sizes_.resize(static_cast<size_t>(w_.panels));
        view_ = {usual_.data(), direction_.data(), std::sqrt(norm), errors_.data(), along_.data(), sizes_.data()};
    }
    static float dot(const float* x, const float* y, size_t k) {
        float sum = 0.0f;
        for (size_t i = 0; i < k; i++) sum += x[i] * y[i];
        return sum;
    }
    static void scale(std::vector<float>& x, float by, bool root) { // to 1 of what is `by`, or nothing
        const float factor = by > 0.0f ? 1.0f / (root ? std::sqrt(by) : by) : 0.0f;
        for (float& y : x) y *= factor;
    }

    Matrix w_;
    int64_t seen_ = 0, learned_ = 0, due_ = 0;
    float largest_ = 0.0f;
    std::vector<float> rows_, usual_, direction_, errors_, along_, sizes_;
    ScreenBounds view_{};
};

// Best of some logits, of equals the lowest id.
struct Best {
    float logit = -INFINITY;
    int32_t id = INT32_MAX;
    void meet(float x, int64_t row) {
        const auto at = static_cast<int32_t>(row);
        if (x > logit || (x == logit && at < id)) logit = x, id = at;
    }
    float bound() const { return logit * 0.125f - 1e-36f; } // what lies below normal numbers is rounded otherwise
};

class Head : public Op {
public:
    Head(LinearSpec spec, const Limits& limits)
        : spec_(std::move(spec)), w_(spec_.weight->view), product_(make_linear(spec_)), rounded_(w_, limits.sampled), bounds_(w_) {}
    enum { kPrepare, kPanels, kChoose, kRest, kLearn, kPhases };
    int phases() const override { return kPhases; }
    int64_t units(const Step& s, int phase) const override {
        const int64_t m = s.rows(spec_.x.rows);
        switch (phase) {
        case kChoose: return screens_ ? m : 0;
        case kRest: return screens_ && left_ ? w_.panels : 0;
        case kLearn: return m && takes_ ? bounds_.due().second - bounds_.due().first : 0;
        default: return product_->units(s, phase);
        }
    }
    int together(const Step& s, int phase) const override {
        return phase == kRest || (phase == kPanels && !screens_) ? product_->together(s, kPanels) : 1;
    }
    size_t scratch_bytes(const Kernels& k) const override {
        return std::max(product_->scratch_bytes(k), static_cast<size_t>(chunks() + w_.panels + kSumLanes) * 4);
    }
    bool prefetches(int phase) const override { return phase == kPanels; }
    void prefetch(int64_t unit) const override { product_->prefetch(unit); }
    const Buffer* chooses() const override { return &spec_.y; }

    // Bounds that leave too much to compute cost more than they save, and where they did they soon will again: then
    // the next steps do without, each time twice as many.
    void begin(const Step& s) override {
        const int64_t m = s.rows(spec_.x.rows);
        if (screens_) {
            const bool paid = !left_ && computed_ <= rows_ * w_.panels / (2 * kWorth);
            wait_ = pause_ = paid ? 0 : std::clamp<int64_t>(2 * pause_, 1, kLongestPause);
        }
        if (takes_) bounds_.begin(rounded_, rows_);
        screens_ = s.choices && bounds_.known() && m <= s.kernels->screened_rows && wait_ == 0;
        takes_ = screens_ || (s.choices && !bounds_.known());
        wait_ -= s.choices && wait_ > 0;
        rows_ = m;
        left_ = 0;
        computed_ = 0;
        if (screens_) least_.assign(static_cast<size_t>(s.threads * stride()), -INFINITY);
        for (int64_t r = 0; s.choices && r < m; r++) s.choices[r] = -1;
    }

    void run(const Step& s, int phase, int64_t begin, int64_t end, int thread) override {
        auto* scratch = reinterpret_cast<uint8_t*>(s.scratch_of(thread));
        if (phase == kPrepare) {
            product_->run(s, kPrepare, begin, end, thread);
            const Activations a = activations(s);
            for (int64_t r = tile_start(a.tiles, begin); takes_ && r < tile_start(a.tiles, end); r++) {
                rounded_.take(a, r);
                if (screens_) rounded_.find_norm(*s.kernels, a.tiles, bounds_.view(), r);
            }
        } else if (phase == kPanels && screens_) {
            Activations a = activations(s);
            a.sum = rounded_.starts();
            const int64_t upcoming = s.upcoming[thread * Step::kLine];
            float* least = least_.data() + thread * stride();
            const ScreenBounds& known = bounds_.view();
            s.kernels->screen({w_, a, rounded_.norms(), rounded_.parts(), known.errors, known.along, rounded_.upper(0),
                               s.at(spec_.y), least, scratch, upcoming < 0 ? nullptr : w_.data + upcoming * w_.panel_bytes},
                              begin, end);
        } else if (phase == kChoose) {
            for (int64_t r = begin; r < end; r++) choose(s, r, scratch);
        } else if (phase == kLearn) {
            bounds_.learn(s, bounds_.due().first + begin, bounds_.due().first + end, scratch);
        } else {
            product_->run(s, kPanels, begin, end, thread);
        }
    }

private:
    int64_t stride() const { return (rows_ + 15) / 16 * 16; }
    int64_t chunks() const { return (w_.panels + kChunk - 1) / kChunk; }
    Activations activations(const Step& s) const {
        return activations_at(s.arena + spec_.prepared, w_.layout, s.rows(spec_.x.rows), w_.k, s.kernels->tile_int8);
    }

    // The rows of a panel that may be the best. Where it was not worth noting their bounds, none is, and any will do.
    void compute(const Step& s, int64_t r, int64_t panel, Best& best) const {
        const float* bounds = s.row(spec_.y, r);
        for (int64_t row = panel * kPanel; row < std::min(panel * kPanel + kPanel, w_.n); row++)
            if (bounds[row] >= best.bound()) best.meet(s.kernels->row_product(w_, row, rounded_.q(r), rounded_.d(r)), row);
    }
    void ask_for(int64_t panel) const {
        const int64_t bytes = w_.k / kBlock * kLowBytes;
        for (int64_t i = 0; i < w_.panel_bytes; i += 64) __builtin_prefetch(w_.data + panel * w_.panel_bytes + i, 0, 2);
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(w_.low + panel * bytes + i, 0, 2);
    }

    void choose(const Step& s, int64_t r, uint8_t* scratch) {
        float *upper = rounded_.upper(r), *maxima = reinterpret_cast<float*>(scratch);
        auto* found = reinterpret_cast<int32_t*>(maxima + chunks());
        const float size = rounded_.norms()[r] * bounds_.largest(); // of products: all are numbers, of full precision
        bool sound = size > 1e-20f && size < 1e35f;
        s.kernels->sample->maxima(upper, w_.panels, maxima);
        for (int64_t c = 0; c < chunks(); c++) sound &= std::isfinite(maxima[c]);
        if (!sound) {
            left_ = 1;
            return;
        }
        Best best;
        for (int64_t c = std::max_element(maxima, maxima + chunks()) - maxima, i = 0; i < chunks(); i++, c = (c + 1) % chunks()) {
            if (maxima[c] < best.bound()) continue; // the likeliest of each chunk, the likeliest chunk first
            float* likely = std::find(upper + c * kChunk, upper + w_.panels, maxima[c]);
            compute(s, r, likely - upper, best);
            *likely = -INFINITY;
        }
        const int64_t count = s.kernels->sample->at_least(upper, w_.panels, best.bound(), 0, found);
        if ((computed_ += count) > rows_ * w_.panels / kWorth) {
            left_ = 1;
            return;
        }
        for (int64_t i = 0; i < count; i++) {
            if (i + 1 < count) ask_for(found[i + 1]);
            if (upper[found[i]] >= best.bound()) compute(s, r, found[i], best);
        }
        s.choices[r] = best.id;
    }

    LinearSpec spec_;
    Matrix w_;
    std::unique_ptr<Op> product_;
    Rounded rounded_;
    Bounds bounds_;
    std::vector<float> least_; // ScreenArgs::least of each thread

    bool takes_ = false, screens_ = false; // in this step: rows by themselves, and bounds of their logits
    int64_t rows_ = 0;
    std::atomic<int> left_{0};         // a row has no choice
    std::atomic<int64_t> computed_{0}; // panels, of all rows
    int64_t pause_ = 0, wait_ = 0;     // steps: as long as the last time, and still to come
};

} // namespace

bool screens(const LinearSpec& s) {
    return s.weight->view.layout == Layout::S8Cut && s.x.rows == Rows::Sampled && !s.bias && !s.has_residual &&
           s.activation == Activation::None && s.scale == 1.0f && s.softcap == 0.0f && s.column == 0 &&
           s.y.width == s.weight->view.n;
}

std::unique_ptr<Op> make_head(LinearSpec spec, const Limits& limits) { return std::make_unique<Head>(std::move(spec), limits); }

} // namespace octavo
