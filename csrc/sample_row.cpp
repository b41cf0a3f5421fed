#include "sample_row.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace octavo {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kNormal = std::numeric_limits<float>::min(); // weights are 0 or at least this

// A number below x, and below whatever f32 numbers are nearest to it.
float below(double x) {
    return x <= -kLargest ? -kLargest : std::nextafter(static_cast<float>(x), -std::numeric_limits<float>::infinity());
}

} // namespace

bool Sampler::Row::edited(bool masked) const {
    const EditsView& e = batch_->edits;
    if (e.bias.has(row_) || boosted() || e.banned.has(row_) || e.seen.has(row_)) return true;
    if (!masked) return false;
    return !std::all_of(mask_, mask_ + words(), [](uint32_t word) { return word == 0xffffffffu; });
}

// logits.edit.
void Sampler::Row::change(const SampleParams& p, bool masked) {
    const EditsView& b = batch_->edits;
    std::memcpy(own_, raw_, static_cast<size_t>(vocab_) * sizeof(float));
    for (int64_t e = b.bias.begin(row_); e < b.bias.end(row_); e++) own_[b.bias.tokens[e]] += b.bias.values[e];
    if (boosted()) pass_->boost(own_, boost_bits(), b.deltas[row_], vocab_);
    for (int64_t e = b.banned.begin(row_); e < b.banned.end(row_); e++)
        own_[b.banned.tokens[e]] = -std::numeric_limits<float>::infinity();
    if (masked) pass_->mask(own_, mask_, vocab_);
    for (int64_t e = b.seen.begin(row_); e < b.seen.end(row_); e++) {
        float& z = own_[b.seen.tokens[e]];
        const float count = b.seen.values[e];
        float value = z > 0.0f ? z / p.repetition_penalty : z * p.repetition_penalty;
        value = value - p.frequency_penalty * count;
        z = value - p.presence_penalty * (count > 0.0f ? 1.0f : 0.0f);
    }
}

// What change does where nothing but the mask edits, and the maxima. A chunk without an allowed token is not even
// written: its maximum keeps everybody from it.
void Sampler::Row::copy_allowed() {
    for (int64_t c = 0; c < chunks_; c++) {
        const int64_t at = c * kChunk, n = size(c, c + 1);
        own_maxima_[c] = -std::numeric_limits<float>::infinity();
        if (!has_any(mask_, c)) continue;
        std::memcpy(own_ + at, raw_ + at, static_cast<size_t>(n) * sizeof(float));
        pass_->mask(own_ + at, mask_ + at / 32, n);
        pass_->maxima(own_ + at, n, own_maxima_ + c);
    }
}

// Sets the peak; false, and the error, where nothing can be drawn.
bool Sampler::Row::judge(const float* z, const float* maxima) {
    peak_ = -std::numeric_limits<float>::infinity();
    for (int64_t c = 0; c < chunks_; c++) {
        if (std::isnan(maxima[c])) {
            error_ = std::any_of(z, z + vocab_, [](float x) { return std::isnan(x); }) ? kNaN : kInfinity;
            return false;
        }
        peak_ = std::max(peak_, maxima[c]);
    }
    if (!std::isfinite(peak_)) error_ = kNothingAllowed;
    return !error_;
}

void Sampler::Row::edit() {
    z_ = raw_;
    maxima_ = raw_maxima_;
    free_ = false;
    if (!only_mask_ && !judge(raw_, raw_maxima_)) return;
    free_ = mask_ && !again_ && is_free(*params_);
    apply(mask_ && !free_);
}

void Sampler::Row::apply(bool masked) {
    if (edited(masked)) {
        if (edited(false)) {
            if (!masked && only_boosted()) {
                const EditsView& e = batch_->edits;
                pass_->lift(raw_, boost_bits(), e.deltas[row_], vocab_, own_, own_maxima_);
            } else {
                change(*params_, masked);
                pass_->maxima(own_, vocab_, own_maxima_);
            }
        } else {
            copy_allowed();
        }
        z_ = own_;
        maxima_ = own_maxima_;
        if (!judge(own_, own_maxima_)) return;
    }
    inverse_ = std::min(1.0f / params_->temperature, kLargest);
}

void Sampler::Row::weigh(int64_t begin, int64_t end) {
    if (error_) return;
    const int64_t at = begin * kChunk;
    if (params_->num_logprobs >= 0) pass_->sums(raw_ + at, raw_maxima_ + begin, size(begin, end), raw_sums_ + begin);
    if (params_->temperature != 0.0f && !is_sparse(*params_))
        pass_->weights(z_ + at, maxima_ + begin, size(begin, end), peak_, inverse_, own_ + at, sums_ + begin);
}

int64_t Sampler::Row::gather(const float* x, const float* maxima, float threshold) {
    int64_t found = 0;
    for (int64_t c = 0; c < chunks_; c++)
        if (maxima[c] >= threshold)
            found += pass_->at_least(x + c * kChunk, size(c, c + 1), threshold, static_cast<int32_t>(c * kChunk), ids_ + found);
    return found;
}

int32_t Sampler::Row::first_best() const {
    const int64_t chunk = std::find(maxima_, maxima_ + chunks_, peak_) - maxima_;
    return static_cast<int32_t>(std::find(z_ + chunk * kChunk, z_ + vocab_, peak_) - z_);
}

// min_p and top_k first: weights of the tokens that these may keep, by a bound on the logits. The
// bounds are lower by more than rounding can move an exponent, so they miss nothing.
int32_t Sampler::Row::draw_sparse(RaceNoise& noise) {
    const SampleParams& p = *params_;
    const double temperature = 1.0 / static_cast<double>(inverse_);
    float threshold = -kLargest;
    if (p.min_p > 0.0f)
        threshold = std::max(threshold, below(peak_ + temperature * (std::log(static_cast<double>(p.min_p)) - 0.01)));
    if (p.top_k > 0 && p.top_k <= chunks_)
        threshold = std::max(threshold, below(kth_maximum(maxima_, p.top_k) - temperature * 0.01));
    Candidates c{.ids = ids_, .weights = found_, .size = 0, .count = vocab_};
    const int64_t found = gather(z_, maxima_, threshold);
    for (int64_t i = 0; i < found; i++) found_[i] = z_[ids_[i]];
    pass_->exp(found_, found, peak_, inverse_, found_);
    const float least = std::max(p.min_p, kNormal);
    for (int64_t i = 0; i < found; i++) {
        const float w = found_[i];
        ids_[c.size] = ids_[i];
        found_[c.size] = w;
        c.size += w >= least;
    }
    if (p.min_p > 0.0f) c.count = c.size;
    if (p.top_k > 0) keep_top_k(c, p.top_k, work_);
    if (p.top_p < 1.0) {
        const double whole = total_of(c);
        keep_top_p(c, p.top_p, whole, top_p_floor(p.top_p, whole, c.count), work_);
    }
    return among_typical(c, noise);
}

int32_t Sampler::Row::among_typical(Candidates& c, RaceNoise& noise) {
    if (params_->typical_p < 1.0) keep_typical(c, params_->typical_p, work_);
    return draw_among(c, noise);
}

Candidates Sampler::Row::heavier(float floor) {
    Candidates c{.ids = ids_, .weights = found_, .size = 0, .count = vocab_};
    floor = std::max(floor, kNormal);
    for (int64_t chunk = 0; chunk < chunks_; chunk++)
        if (sums_[chunk] >= static_cast<double>(floor))
            c.size += pass_->at_least(own_ + chunk * kChunk, size(chunk, chunk + 1), floor,
                                      static_cast<int32_t>(chunk * kChunk), ids_ + c.size);
    for (int64_t i = 0; i < c.size; i++) found_[i] = own_[ids_[i]];
    return c;
}

int32_t Sampler::Row::draw_from_weights(RaceNoise& noise) {
    const SampleParams& p = *params_;
    if (p.top_k > 0 && p.top_k < vocab_) {
        Candidates c = heavier(kNormal);
        keep_top_k(c, p.top_k, work_);
        const double whole = total_of(c);
        if (p.top_p < 1.0) keep_top_p(c, p.top_p, whole, top_p_floor(p.top_p, whole, c.count), work_);
        return among_typical(c, noise);
    }
    if (!(p.top_p < 1.0) && p.typical_p < 1.0) {
        Candidates c = heavier(kNormal);
        return among_typical(c, noise);
    }
    if (!(p.top_p < 1.0)) return draw_dense(own_, sums_, vocab_, noise);
    double whole = 0.0;
    for (int64_t chunk = 0; chunk < chunks_; chunk++) whole += sums_[chunk];
    const float floor = top_p_floor(p.top_p, whole, vocab_), guess = std::max(floor, top_p_guess(p.top_p, whole));
    Candidates c = heavier(guess);
    if (!keep_top_p(c, p.top_p, whole, guess, work_)) {
        c = heavier(floor);
        keep_top_p(c, p.top_p, whole, floor, work_);
    }
    return among_typical(c, noise);
}

int32_t Sampler::Row::draw(Stream stream) {
    if (error_) return error_;
    if (batch_->given) return batch_->given[row_];
    if (params_->temperature == 0.0f) return first_best();
    RaceNoise noise(*params_, batch_->positions[row_], stream);
    return is_sparse(*params_) ? draw_sparse(noise) : draw_from_weights(noise);
}

void Sampler::Row::finish() {
    int32_t token = draw(again_ && is_free(*params_) ? Stream::Again : Stream::Target);
    if (free_ && (token < 0 || !allows(token))) {
        error_ = 0;
        apply(true);
        weigh(0, chunks_);
        token = draw(Stream::Again);
    }
    if (token >= 0 && params_->num_logprobs >= 0) report(token);
    batch_->token[row_] = token;
}

// 8. Of the raw logits.
void Sampler::Row::report(int32_t token) {
    const float peak = *std::max_element(raw_maxima_, raw_maxima_ + chunks_);
    pass_->exp(raw_maxima_, chunks_, peak, 1.0f, order_);
    double sum = 0.0;
    for (int64_t c = 0; c < chunks_; c++) sum += raw_sums_[c] * static_cast<double>(order_[c]);
    const double normalizer = static_cast<double>(peak) + log_of(sum);
    const float value = raw_[token];
    int64_t rank = 1;
    for (int64_t c = 0; c < chunks_; c++) {
        if (raw_maxima_[c] < value) continue;
        const float *x = raw_ + c * kChunk, *end = x + size(c, c + 1), *own = std::clamp(raw_ + token, x, end);
        for (const float* at = x; at < own; at++) rank += *at >= value;
        for (const float* at = own; at < end; at++) rank += *at > value;
    }
    const ScoresView& to = batch_->scores;
    to.logprobs[row_] = static_cast<double>(value) - normalizer;
    to.ranks[row_] = rank;
    const int64_t count = std::min<int64_t>(params_->num_logprobs, vocab_);
    std::fill_n(to.top_tokens + row_ * to.top, to.top, -1);
    if (count == 0) return;
    const float bound = count <= chunks_ ? kth_maximum(raw_maxima_, count) : -kLargest;
    const int64_t found = gather(raw_, raw_maxima_, std::max(bound, -kLargest));
    const int64_t most = std::min(count, found);
    std::partial_sort(ids_, ids_ + most, ids_ + found, [this](int32_t a, int32_t b) {
        return raw_[a] > raw_[b] || (raw_[a] == raw_[b] && a < b);
    });
    for (int64_t i = 0; i < most; i++) {
        to.top_tokens[row_ * to.top + i] = ids_[i];
        to.top_logprobs[row_ * to.top + i] = static_cast<double>(raw_[ids_[i]]) - normalizer;
    }
}

} // namespace octavo
