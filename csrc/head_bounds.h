// What the head (head_op.cpp) knows beside its weights: a step's rows, and what makes bounds of their logits narrow.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops.h"

namespace octavo {

constexpr int64_t kLearned = 32; // rows from which follows what is usual
constexpr int64_t kSteps = 16;   // over which the bounds' part of the weights is computed then

// What a step holds of its rows, beside their logits.
class Rounded {
public:
    Rounded(const Matrix& w, int64_t rows) : k_(w.k), panels_(w.panels), memory_(share_out(nullptr, rows), false) {
        share_out(memory_.data(), rows);
    }
    // Its activations, as integers and their blocks' factors.
    int8_t* q(int64_t row) const { return q_ + row * k_; }
    float* d(int64_t row) const { return d_ + row * blocks(); }
    int32_t* sums(int64_t row) const { return sums_ + row * blocks(); }
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
    // What only its product reads beside them.
    void take_sums(const Activations& from, int64_t r) const {
        const int64_t tile = tile_of(from.tiles, r), start = tile_start(from.tiles, tile), c = tile_size(from.tiles, tile);
        for (int64_t b = 0; b < blocks(); b++) sums(r)[b] = from.sum[start * blocks() + b * c + r - start];
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
        take(q_, k_), take(d_, blocks()), take(starts_, blocks()), take(sums_, blocks()), take(norms_, 1), take(parts_, 1), take(upper_, panels_);
        return used;
    }

    int64_t k_, panels_;
    Region memory_; // touched as far as batches reach
    int8_t* q_ = nullptr;
    int32_t *starts_ = nullptr, *sums_ = nullptr;
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
        view_ = {.usual = usual_.data(),
                 .direction = direction_.data(),
                 .direction_norm = std::sqrt(norm),
                 .errors = errors_.data(),
                 .along = along_.data(),
                 .sizes = sizes_.data()};
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

} // namespace octavo
