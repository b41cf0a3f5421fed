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

void Decoder::gather(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, int64_t width,
                     DecodeBatch& to) const {
    const size_t n = rows.size();
    const auto page_size = static_cast<int32_t>(rows_.page_size);
    to.token_ids.resize(n), to.context_lens.resize(n), to.sampled.resize(n), to.whole.resize(n);
    to.positions = starts;
    to.query_start.assign(1, 0);
    for (size_t i = 0; i < n; i++) {
        to.token_ids[i] = rows_.tokens[rows[i] * rows_.tokens_width + starts[i]];
        to.context_lens[i] = starts[i] + 1;
        to.sampled[i] = static_cast<int32_t>(i);
        to.query_start.push_back(static_cast<int32_t>(i) + 1);
        to.whole[i] = rows_.records[rows[i]].temperature != 0.0f;
    }
    const auto look_up = [&](const int32_t* pages, std::vector<int32_t>& tables, std::vector<int32_t>& slots) {
        tables.resize(n * static_cast<size_t>(width)), slots.resize(n);
        for (size_t i = 0; i < n; i++) {
            const int32_t* table = pages + rows[i] * rows_.pages_width;
            slots[i] = table[starts[i] / page_size] * page_size + starts[i] % page_size;
            std::copy_n(table, width, tables.begin() + static_cast<int64_t>(i) * width);
        }
    };
    look_up(rows_.pages, to.page_tables, to.slots);
    if (rows_.sliding_pages) look_up(rows_.sliding_pages, to.sliding_tables, to.sliding_slots);
}

BatchView DecodeBatch::view() const {
    const auto tokens = static_cast<int64_t>(token_ids.size()), sequences = static_cast<int64_t>(context_lens.size());
    return {.token_ids = token_ids.data(),
            .positions = positions.data(),
            .slots = slots.data(),
            .query_start = query_start.data(),
            .context_lens = context_lens.data(),
            .page_tables = page_tables.data(),
            .sampled = sampled.data(),
            .tokens = tokens,
            .sequences = sequences,
            .sampled_rows = tokens,
            .table_width = static_cast<int64_t>(page_tables.size()) / sequences,
            .cross_lens = nullptr,
            .cross_tables = nullptr,
            .cross_width = 0,
            .tree_masks = nullptr,
            .tree_words = 0,
            .sliding_slots = sliding_slots.empty() ? nullptr : sliding_slots.data(),
            .sliding_tables = sliding_tables.empty() ? nullptr : sliding_tables.data(),
            .rope_positions = positions.data(),
            .replaced = nullptr,
            .replaced_rows = nullptr,
            .replaced_count = 0,
            .replaced_width = 0,
            .given_rows = 0};
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
    const size_t n = rows.size();
    sort_out(n, others);
    gather(rows, starts, check(rows, starts), batch_);
    positions_.resize(n), params_.resize(n);
    for (size_t i = 0; i < n; i++) {
        positions_[i] = starts[i] + 1; // of the token to be drawn
        params_[i] = rows_.records[rows[i]];
        if (left_[i] || scored_[i] || lifted_[i]) batch_.whole[i] = 1;
    }
    drawn.assign(n, -1);
    last_rows_ = rows;
    const double begin = seconds();
    compute(drawn);
    const double computed = seconds();
    chose_.assign(n, 0);
    for (size_t i = 0; i < n; i++) chose_[i] = drawn[i] >= 0;
    sampler_.make(others.lists); // now: the pool is awake
    ask(refusal, drawn);
    draw(refusal, others, drawn);
    const double drew = seconds();
    for (size_t i = 0; i < n; i++) {
        if (drawn[i] < 0) continue;
        int64_t& length = rows_.lengths[rows[i]];
        rows_.tokens[rows[i] * rows_.tokens_width + length++] = drawn[i];
    }
    // (of rows that ask for more, logits may still be asked for, or another draw)
    if (ahead_ && n == 1 && drawn[0] >= 0 && !left_[0] && !asked_[0] && !scored_[0] && !lifted_[0]) begin_next(rows[0], starts[0]);
    forward_s_ += computed - begin + seconds() - drew;
    drawing_s_ += drew - computed;
}

// The forward, or the rest of it where workers have begun with it.
void Decoder::compute(std::vector<int32_t>& drawn) {
    const int64_t begun = std::exchange(begun_, 0);
    if (begun && batch_ == next_ && program_.join(begun)) {
        drawn[0] = next_choice_;
        taken_up_++;
        return;
    }
    const bool chooses = program_.chooses() && std::find(batch_.whole.begin(), batch_.whole.end(), 0) != batch_.whole.end();
    program_.replay(batch_.view(), chooses ? drawn.data() : nullptr, batch_.whole.data());
}

// A row that has drawn a token goes on with it, as a rule. What it computes has a slot already, but where a page begins,
// which the row may not have yet. A step that is not asked for then has written into that slot alone, behind all that the
// row has computed: such a page is in no cache, and whoever comes to share it copies it, and writes the slot before
// reading it.
void Decoder::begin_next(int32_t row, int32_t start) {
    const int32_t position = start + 1;
    if (position % rows_.page_size == 0 || rows_.lengths[row] != position + 1 || rows_.lengths[row] >= rows_.tokens_width) return;
    gather({row}, {position}, position / rows_.page_size + 1, next_);
    next_choice_ = -1;
    last_rows_[0] = -1;
    try {
        begun_ = program_.begin(next_.view(), program_.chooses() && !next_.whole[0] ? &next_choice_ : nullptr, next_.whole.data());
    } catch (const std::invalid_argument&) {
        begun_ = 0; // such as a token that has no embedding: who asks for that step is told
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
