// The head, where a step may want no more of its logits than the largest: from upper bounds that five of a weight's
// eight bits give (isa/screen.inl) follows which panels can hold it, and only these are computed.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "head_bounds.h"

namespace octavo {
namespace {

constexpr int64_t kLongestPause = 256; // steps
constexpr int64_t kWorth = 8;          // one panel in so many costs by rows what bounds save

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
    void prefetch(const Step& s, int64_t unit) const override { product_->prefetch(s, unit); }
    const Buffer* chooses() const override { return &spec_.y; }
    // The panels' bounds are the row's still, but for those of panels that choose() computed.
    int32_t choose_among(const Step& s, int64_t r, const uint32_t* allowed) const override {
        const float* upper = rounded_.upper(r);
        int64_t likely = -1;
        for (int64_t p = 0; p < w_.panels; p++)
            if (bits_of(allowed, p) && (likely < 0 || upper[p] > upper[likely])) likely = p;
        if (likely < 0) return -1;
        Best best;
        compute_among(s, r, likely, bits_of(allowed, likely), best);
        for (int64_t p = 0; p < w_.panels; p++)
            if (p != likely && (upper[p] >= best.bound() || upper[p] == -INFINITY)) compute_among(s, r, p, bits_of(allowed, p), best);
        return best.id == INT32_MAX ? -1 : best.id;
    }

    // Bounds that leave too much to compute cost more than they save, and where they did they soon will again: then
    // the next steps do without, each time twice as many.
    void begin(const Step& s) override {
        const int64_t m = s.rows(spec_.x.rows);
        if (screens_ && s.follows) {
            const bool paid = !left_ && computed_ <= rows_ * w_.panels / (2 * kWorth);
            wait_ = pause_ = paid ? 0 : std::clamp<int64_t>(2 * pause_, 1, kLongestPause);
        }
        if (takes_ && s.follows) bounds_.begin(rounded_, rows_); // or what was due is so still
        whole_.clear();
        for (int64_t r = 0; s.choices && s.whole && r < m; r++)
            if (s.whole[r]) whole_.push_back({.row = r, .q = rounded_.q(r), .d = rounded_.d(r), .sum = rounded_.sums(r), .y = s.row(spec_.y, r)});
        const int64_t most = s.kernels->rows_to_a_whole_one ? m / s.kernels->rows_to_a_whole_one : 0;
        const bool few = static_cast<int64_t>(whole_.size()) <= most;
        screens_ = s.choices && few && bounds_.known() && m <= s.kernels->screened_rows && wait_ == 0;
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
                if (screens_ && is_whole(s, r)) rounded_.take_sums(a, r);
                if (screens_) rounded_.find_norm(*s.kernels, a.tiles, bounds_.view(), r);
            }
        } else if (phase == kPanels && screens_) {
            find_bounds(s, begin, end, s.upcoming[thread * Step::kLine], thread, scratch);
        } else if (phase == kChoose) {
            for (int64_t r = begin; r < end; r++)
                if (!is_whole(s, r)) choose(s, r, scratch);
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

    static bool is_whole(const Step& s, int64_t r) { return s.whole && s.whole[r]; }
    const uint8_t* panel_at(int64_t p) const { return p < 0 ? nullptr : w_.data + p * w_.panel_bytes; }

    void find_bounds(const Step& s, int64_t begin, int64_t end, int64_t upcoming, int thread, uint8_t* scratch) {
        Activations a = activations(s);
        a.sum = rounded_.starts();
        const ScreenBounds& known = bounds_.view();
        const ScreenArgs args{.w = w_,
                              .a = a,
                              .norms = rounded_.norms(),
                              .parts = rounded_.parts(),
                              .errors = known.errors,
                              .along = known.along,
                              .upper = rounded_.upper(0),
                              .rows = s.at(spec_.y),
                              .least = least_.data() + thread * stride(),
                              .whole = whole_.data(),
                              .wholes = static_cast<int64_t>(whole_.size()),
                              .scratch = scratch,
                              .upcoming = panel_at(upcoming)};
        s.kernels->screen(args, begin, end);
    }

    // The rows of a panel that may be the best. Where it was not worth noting their bounds, none is, and any will do.
    void compute(const Step& s, int64_t r, int64_t panel, Best& best) const {
        const float* bounds = s.row(spec_.y, r);
        for (int64_t row = panel * kPanel; row < std::min(panel * kPanel + kPanel, w_.n); row++)
            if (bounds[row] >= best.bound()) best.meet(s.kernels->row_product(w_, row, rounded_.q(r), rounded_.d(r)), row);
    }
    // Which of a panel's rows are allowed.
    static uint32_t bits_of(const uint32_t* allowed, int64_t panel) { return allowed[panel / 2] >> (panel % 2 * kPanel) & 0xffff; }
    // Rows that the first choice had no need of: of some panels their bounds were never noted, so none is looked at.
    void compute_among(const Step& s, int64_t r, int64_t panel, uint32_t allowed, Best& best) const {
        for (int64_t row = panel * kPanel; allowed && row < w_.n; row++, allowed >>= 1)
            if (allowed & 1) best.meet(s.kernels->row_product(w_, row, rounded_.q(r), rounded_.d(r)), row);
    }
    void ask_for(int64_t panel) const {
        const int64_t bytes = w_.k / kBlock * kLowBytes;
        ask_for_bytes(w_.data + panel * w_.panel_bytes, w_.panel_bytes);
        ask_for_bytes(w_.low + panel * bytes, bytes);
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
    std::vector<WholeRow> whole_; // of the step

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
