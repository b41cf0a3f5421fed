#include "decode.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace octavo {
namespace {

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
}

} // namespace

Decoder::Decoder(Program& program, Sampler& sampler, const DecodeRows& rows)
    : program_(program), sampler_(sampler), rows_(rows) {
    const Buffer& result = program.result();
    require(result.rows == Rows::Sampled && result.width == sampler.vocab(), "the program's result is no logits");
    require(rows.page_size > 0, "a page has at least one slot");
}

double Decoder::seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Decoder::count_to(size_t n) {
    while (counting_.size() < n + 1) counting_.push_back(static_cast<int32_t>(counting_.size()));
}

// How many pages the longest row uses.
int64_t Decoder::check(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts) const {
    require(!rows.empty() && rows.size() == starts.size(), "rows and starts differ in length");
    int32_t last = 0;
    for (size_t i = 0; i < rows.size(); i++) {
        require(rows[i] >= 0 && rows[i] < rows_.num_rows, "there is no such row");
        const int64_t length = rows_.lengths[rows[i]];
        require(starts[i] >= 0 && starts[i] < length && length < rows_.tokens_width, "a position is not a known token's");
        require(left_[i] || scored_[i] || rows_.records[rows[i]].num_logprobs < 0, "a row asks for log-probabilities");
        last = std::max(last, starts[i]);
    }
    const int64_t width = last / rows_.page_size + 1;
    require(width <= rows_.pages_width, "a position is beyond the page table");
    return width;
}

BatchView Decoder::gather(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, int64_t width) {
    const size_t n = rows.size();
    token_ids_.resize(n), slots_.resize(n), context_lens_.resize(n), positions_.resize(n), params_.resize(n);
    page_tables_.resize(n * static_cast<size_t>(width));
    count_to(n);
    const auto page_size = static_cast<int32_t>(rows_.page_size);
    for (size_t i = 0; i < n; i++) {
        const int32_t* table = rows_.pages + rows[i] * rows_.pages_width;
        token_ids_[i] = rows_.tokens[rows[i] * rows_.tokens_width + starts[i]];
        slots_[i] = table[starts[i] / page_size] * page_size + starts[i] % page_size;
        context_lens_[i] = starts[i] + 1;
        positions_[i] = starts[i] + 1; // of the token to be drawn
        params_[i] = rows_.records[rows[i]];
        std::copy_n(table, width, page_tables_.begin() + static_cast<int64_t>(i) * width);
    }
    if (rows_.sliding_pages) gather_sliding(rows, starts, width);
    return view(static_cast<int64_t>(n), width, starts.data(), counting_.data());
}

// All of its tokens are sampled.
BatchView Decoder::view(int64_t sequences, int64_t width, const int32_t* positions, const int32_t* query_start) const {
    const auto tokens = static_cast<int64_t>(token_ids_.size());
    return {.token_ids = token_ids_.data(),
            .positions = positions,
            .slots = slots_.data(),
            .query_start = query_start,
            .context_lens = context_lens_.data(),
            .page_tables = page_tables_.data(),
            .sampled = counting_.data(),
            .tokens = tokens,
            .sequences = sequences,
            .sampled_rows = tokens,
            .table_width = width,
            .cross_lens = nullptr,
            .cross_tables = nullptr,
            .cross_width = 0,
            .tree_masks = nullptr,
            .tree_words = 0,
            .sliding_slots = rows_.sliding_pages ? sliding_slots_.data() : nullptr,
            .sliding_tables = rows_.sliding_pages ? sliding_tables_.data() : nullptr,
            .rope_positions = positions,
            .replaced = nullptr,
            .replaced_rows = nullptr,
            .replaced_count = 0,
            .replaced_width = 0,
            .given_rows = 0};
}

void Decoder::gather_sliding(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, int64_t width) {
    sliding_slots_.resize(rows.size());
    sliding_tables_.resize(rows.size() * static_cast<size_t>(width));
    const auto page_size = static_cast<int32_t>(rows_.page_size);
    for (size_t i = 0; i < rows.size(); i++) {
        const int32_t* table = rows_.sliding_pages + rows[i] * rows_.pages_width;
        sliding_slots_[i] = table[starts[i] / page_size] * page_size + starts[i] % page_size;
        std::copy_n(table, width, sliding_tables_.begin() + static_cast<int64_t>(i) * width);
    }
}

void Decoder::sort_out(size_t rows, const OtherRows& others) {
    asked_.assign(rows, 0), left_.assign(rows, 0), scored_.assign(rows, 0), lifted_.assign(rows, 0);
    for (const auto& [places, flags] : {std::pair(&others.left, &left_), std::pair(&others.asked, &asked_),
                                        std::pair(&others.scored, &scored_), std::pair(&others.lifted, &lifted_)})
        for (const int32_t i : *places) {
            const auto at = static_cast<size_t>(i);
            require(i >= 0 && at < rows && !asked_[at] && !left_[at] && !scored_[at] && !lifted_[at],
                    "a place is no row's, or one of two kinds");
            (*flags)[at] = 1;
        }
}

void Decoder::step(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const OtherRows& others,
                   const Refusal& refusal, std::vector<int32_t>& drawn) {
    sort_out(rows.size(), others);
    const BatchView batch = gather(rows, starts, check(rows, starts));
    drawn.assign(rows.size(), -1);
    last_rows_ = rows;
    whole_.resize(rows.size());
    for (size_t i = 0; i < rows.size(); i++) whole_[i] = left_[i] || scored_[i] || lifted_[i] || params_[i].temperature != 0.0f;
    const bool chooses = program_.chooses() && std::find(whole_.begin(), whole_.end(), 0) != whole_.end();
    const double begin = seconds();
    program_.replay(batch, chooses ? drawn.data() : nullptr, whole_.data());
    const double computed = seconds();
    chose_.assign(rows.size(), 0);
    for (size_t i = 0; i < rows.size(); i++) chose_[i] = drawn[i] >= 0;
    sampler_.make(others.lists); // now: the pool is awake
    ask(refusal, drawn);
    draw(refusal, others, drawn);
    forward_s_ += computed - begin;
    drawing_s_ += seconds() - computed;
    for (size_t i = 0; i < rows.size(); i++) {
        if (drawn[i] < 0) continue;
        int64_t& length = rows_.lengths[rows[i]];
        rows_.tokens[rows[i] * rows_.tokens_width + length++] = drawn[i];
    }
}

// About what the program chose: of a refused row it knows the largest that is allowed, too.
void Decoder::ask(const Refusal& refusal, std::vector<int32_t>& drawn) {
    for (size_t i = 0; i < drawn.size(); i++) {
        if (!chose_[i]) continue;
        chosen_++;
        const auto place = static_cast<int32_t>(i);
        const uint32_t* allowed = asked_[i] && refusal ? refusal(place, drawn[i]) : nullptr;
        if (allowed) drawn[i] = program_.choose_among(place, allowed);
        if (allowed || !asked_[i]) last_rows_[i] = -1;
    }
}

// Those that the program did not choose, and that are not left to others.
void Decoder::draw(const Refusal& refusal, const OtherRows& others, std::vector<int32_t>& drawn) {
    which_.clear();
    for (size_t i = 0; i < drawn.size(); i++) {
        if (left_[i]) drawn[i] = kLeft;
        if (left_[i] || scored_[i] || lifted_[i]) last_rows_[i] = -1;
        else if (!chose_[i]) which_.push_back(static_cast<int32_t>(i));
    }
    draw_some(refusal, {}, {}, drawn);
    which_ = others.scored;
    draw_some({}, {}, others.scores, drawn);
    which_ = others.lifted;
    draw_some({}, others.boost, {}, drawn);
}

void Decoder::draw_some(const Refusal& refusal, const EditsView& edits, const ScoresView& scores,
                        std::vector<int32_t>& drawn) {
    if (which_.empty()) return;
    SampleBatch batch{.logits = logits(),
                      .rows = static_cast<int64_t>(which_.size()),
                      .vocab = sampler_.vocab(),
                      .params = params_.data(),
                      .positions = positions_.data(),
                      .edits = edits,
                      .token = drawn.data(),
                      .scores = scores};
    if (which_.size() == drawn.size() && std::is_sorted(which_.begin(), which_.end())) return draw(batch, refusal); // all, in order
    which_params_.clear(), which_positions_.clear();
    for (const int32_t i : which_) {
        which_params_.push_back(params_[static_cast<size_t>(i)]);
        which_positions_.push_back(positions_[static_cast<size_t>(i)]);
    }
    which_tokens_.resize(which_.size());
    batch.params = which_params_.data(), batch.positions = which_positions_.data();
    batch.which = which_.data(), batch.token = which_tokens_.data();
    draw(batch, refusal);
    for (size_t i = 0; i < which_.size(); i++) drawn[static_cast<size_t>(which_[i])] = which_tokens_[i];
}

void Decoder::draw(const SampleBatch& batch, const Refusal& refusal) {
    if (!refusal) return sampler_.sample(batch);
    sampler_.sample(batch, [&](int64_t row, int32_t token) -> const uint32_t* {
        const int32_t i = which_[static_cast<size_t>(row)];
        const auto at = static_cast<size_t>(i);
        const uint32_t* allowed = token >= 0 && asked_[at] ? refusal(i, token) : nullptr;
        if (allowed) last_rows_[at] = -1;
        return allowed;
    });
}

void Decoder::redraw(const std::vector<int32_t>& indices, const uint32_t* mask, std::vector<int32_t>& drawn) {
    const int64_t words = (sampler_.vocab() + 31) / 32;
    std::vector<SampleParams> params;
    std::vector<int64_t> positions;
    std::vector<int32_t> rows, which;
    std::vector<uint32_t> masks;
    std::vector<size_t> places; // in `indices`, of those that have logits
    for (const int32_t i : indices) {
        const bool known = i >= 0 && static_cast<size_t>(i) < last_rows_.size() && last_rows_[static_cast<size_t>(i)] >= 0;
        const auto at = static_cast<size_t>(i);
        require(known && rows_.lengths[last_rows_[at]] == positions_[at] + 1, "a redrawn token is not the last step's");
        rows.push_back(std::exchange(last_rows_[at], -1));
    }
    drawn.resize(indices.size());
    const double begin = seconds();
    for (size_t i = 0; i < indices.size(); i++) {
        const auto at = static_cast<size_t>(indices[i]);
        const uint32_t* line = mask + static_cast<int64_t>(i) * words;
        if (chose_[at]) {
            drawn[i] = program_.choose_among(indices[i], line);
            continue;
        }
        places.push_back(i), which.push_back(indices[i]);
        params.push_back(params_[at]), positions.push_back(positions_[at]);
        masks.insert(masks.end(), line, line + words);
    }
    if (!places.empty()) {
        std::vector<int32_t> again(places.size());
        sampler_.sample({.logits = logits(),
                         .rows = static_cast<int64_t>(places.size()),
                         .vocab = sampler_.vocab(),
                         .params = params.data(),
                         .positions = positions.data(),
                         .edits = {.mask = masks.data()},
                         .token = again.data(),
                         .again = true,
                         .which = which.data()});
        for (size_t i = 0; i < places.size(); i++) drawn[places[i]] = again[i];
    }
    drawing_s_ += seconds() - begin;
    for (size_t i = 0; i < indices.size(); i++) {
        int64_t& length = rows_.lengths[rows[i]];
        if (drawn[i] < 0) length--;
        else rows_.tokens[rows[i] * rows_.tokens_width + length - 1] = drawn[i];
    }
}

} // namespace octavo
