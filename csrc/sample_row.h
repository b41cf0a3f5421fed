// One row's way through the steps of sampling/sampler.py.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "sample.h"

namespace octavo {

// The state of one row while it is drawn: memory for one vocabulary, touched as far as it is needed.
class Sampler::Row {
public:
    Row(const SamplePasses* passes, int64_t vocab)
        : pass_(passes), vocab_(vocab), chunks_((vocab + kChunk - 1) / kChunk), memory_(bytes(), false) {
        auto* at = memory_.data();
        auto take = [&](auto*& array, int64_t count) {
            array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
            at += (static_cast<size_t>(count) * sizeof(*array) + 63) / 64 * 64;
        };
        take(own_, vocab_), take(found_, vocab_), take(ids_, vocab_ + kSumLanes);
        take(sums_, chunks_), take(raw_sums_, chunks_);
        take(raw_maxima_, chunks_), take(own_maxima_, chunks_), take(order_, chunks_);
        work_.reserve(static_cast<size_t>(vocab));
    }

    int64_t chunks() const { return chunks_; }

    // 1. Chunks [begin, end) of the raw logits.
    void look(int64_t begin, int64_t end) {
        if (!only_mask_) pass_->maxima(raw_ + begin * kChunk, size(begin, end), raw_maxima_ + begin);
    }
    // 2. Edits, and whether there is anything to draw.
    void edit();
    // 4. Weights of chunks [begin, end), and what log-probabilities need.
    void weigh(int64_t begin, int64_t end);
    // 5 to 8.
    void finish();

    // refused: the mask that refused the row's token.
    void start(const SampleBatch& batch, int64_t row, const uint32_t* refused = nullptr) {
        batch_ = &batch;
        row_ = row;
        params_ = &batch.params[row];
        raw_ = batch.logits + (batch.which ? batch.which[row] : row) * vocab_;
        mask_ = refused || !batch.edits.mask ? refused : batch.edits.mask + row * words();
        again_ = refused || batch.again;
        // What is allowed is all that counts: that the others are no NaN was seen in the first draw.
        only_mask_ = again_ && params_->num_logprobs < 0 && !edited(false) && edited(true);
        error_ = 0;
    }
    void all(const SampleBatch& batch, int64_t row, const uint32_t* refused = nullptr) {
        start(batch, row, refused);
        look(0, chunks_);
        edit();
        weigh(0, chunks_);
        finish();
    }
    // Whether weigh has anything to do.
    bool weighs(const SampleParams& p) const { return p.num_logprobs >= 0 || (p.temperature != 0.0f && !is_sparse(p)); }
    int64_t words() const { return (vocab_ + 31) / 32; }
    // Tokens in chunks of which the mask allows something.
    int64_t allowed(const uint32_t* mask) const {
        int64_t tokens = 0;
        for (int64_t c = 0; c < chunks_; c++) tokens += has_any(mask, c) ? size(c, c + 1) : 0;
        return tokens;
    }

private:
    size_t bytes() const { return static_cast<size_t>(vocab_ * 12 + chunks_ * 28 + 9 * 64); }
    int64_t size(int64_t begin, int64_t end) const { return std::min(end * kChunk, vocab_) - begin * kChunk; }
    // Few tokens can be kept, and which is seen from the logits: the others need no weight.
    bool is_sparse(const SampleParams& p) const { return p.min_p > 0.0f || (p.top_k > 0 && p.top_k <= chunks_ && p.top_k < vocab_); }
    // Drawn without the mask first.
    static bool is_free(const SampleParams& p) {
        return p.temperature == 0.0f || (p.min_p == 0.0f && p.top_k == 0 && p.top_p == 1.0 && p.typical_p == 1.0);
    }
    bool allows(int32_t token) const { return mask_[token / 32] >> (token % 32) & 1; }
    bool has_any(const uint32_t* mask, int64_t chunk) const {
        const uint32_t *words = mask + chunk * (kChunk / 32), *end = words + (size(chunk, chunk + 1) + 31) / 32;
        return !std::all_of(words, end, [](uint32_t word) { return word == 0; });
    }
    bool edited(bool masked) const;
    bool boosted() const { return batch_->edits.boost && batch_->edits.deltas[row_] != 0.0f; }
    bool only_boosted() const {
        const EditsView& e = batch_->edits;
        return boosted() && !e.bias.has(row_) && !e.banned.has(row_) && !e.seen.has(row_);
    }
    const uint32_t* boost_bits() const {
        const EditsView& e = batch_->edits;
        return e.boost + (e.lines ? e.lines[row_] : row_) * words();
    }
    void change(const SampleParams& p, bool masked);
    void apply(bool masked);
    void copy_allowed();
    int32_t draw(Stream stream);
    bool judge(const float* z, const float* maxima);
    // Ids of the tokens at least `threshold`, ascending.
    int64_t gather(const float* x, const float* maxima, float threshold);
    float kth_maximum(const float* maxima, int64_t k) {
        std::copy(maxima, maxima + chunks_, order_);
        return kth_largest(order_, chunks_, k);
    }
    // Of the weights: those at least `floor`, but for 0.
    Candidates heavier(float floor);
    int32_t first_best() const;
    int32_t draw_sparse(RaceNoise& noise);
    int32_t draw_from_weights(RaceNoise& noise);
    // The last that narrows, and the race.
    int32_t among_typical(Candidates& c, RaceNoise& noise);
    void report(int32_t token);

    const SamplePasses* pass_;
    int64_t vocab_, chunks_;
    Region memory_;
    float *own_, *found_;  // edited logits, then weights; weights of the tokens ids_
    int32_t* ids_;
    double *sums_, *raw_sums_;
    float *raw_maxima_, *own_maxima_, *order_;
    std::vector<float> work_;

    const SampleBatch* batch_ = nullptr;
    int64_t row_ = 0;
    const SampleParams* params_ = nullptr;
    const uint32_t* mask_ = nullptr;
    bool again_ = false, only_mask_ = false;
    const float *raw_ = nullptr, *z_ = nullptr, *maxima_ = nullptr; // z_, maxima_: after edits
    float peak_ = 0.0f, inverse_ = 0.0f;
    int32_t error_ = 0;
    bool free_ = false; // z_ is without the mask
};

} // namespace octavo
