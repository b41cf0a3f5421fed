// Steps whose rows verify chains of drafts: batch, forward, walk and append in one call (runtime/drafted.py).
#include <algorithm>
#include <stdexcept>

#include "decode.h"

namespace octavo {
namespace {

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
}

} // namespace

// Node j of row i is its token at starts[i] for j = 0, and its draft j - 1 after that.
void Decoder::gather_nodes(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const Drafts& drafts) {
    auto& [token_ids, positions, slots, query_start, context_lens, page_tables, sliding_slots, sliding_tables, sampled, whole] = batch_;
    token_ids.clear(), positions.clear(), slots.clear(), sliding_slots.clear(), sampled.clear(), whole.clear();
    query_start.assign(1, 0), context_lens.clear();
    int32_t last = 0;
    const auto size = static_cast<int32_t>(rows_.page_size);
    for (size_t i = 0; i < rows.size(); i++) {
        const auto count = static_cast<int32_t>(drafts[i].size()), end = starts[i] + 1 + count;
        require(rows_.lengths[rows[i]] == starts[i] + 1, "drafts follow a row's last known token");
        require(end < rows_.tokens_width && (end - 1) / size < rows_.pages_width, "a draft is beyond what its row holds");
        for (int32_t at = starts[i]; at < end; at++) {
            const int64_t page = rows[i] * rows_.pages_width + at / size;
            const int32_t token = at == starts[i] ? rows_.tokens[rows[i] * rows_.tokens_width + at]
                                                  : drafts[i][static_cast<size_t>(at - starts[i] - 1)];
            require(token >= 0 && token < sampler_.vocab(), "a draft is no token of the vocabulary");
            sampled.push_back(static_cast<int32_t>(token_ids.size())), whole.push_back(rows_.records[rows[i]].temperature != 0.0f);
            token_ids.push_back(token), positions.push_back(at);
            slots.push_back(rows_.pages[page] * size + at % size);
            if (rows_.sliding_pages) sliding_slots.push_back(rows_.sliding_pages[page] * size + at % size);
        }
        query_start.push_back(static_cast<int32_t>(token_ids.size())), context_lens.push_back(end);
        last = std::max(last, end - 1);
    }
    const int64_t width = last / size + 1;
    page_tables.clear(), sliding_tables.clear();
    for (const int32_t row : rows) {
        const int64_t table = row * rows_.pages_width;
        page_tables.insert(page_tables.end(), rows_.pages + table, rows_.pages + table + width);
        if (rows_.sliding_pages)
            sliding_tables.insert(sliding_tables.end(), rows_.sliding_pages + table, rows_.sliding_pages + table + width);
    }
}

void Decoder::verify(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const Drafts& drafts,
                     std::vector<std::vector<int32_t>>& drawn) {
    require(drafts.size() == rows.size(), "rows and drafts differ in length");
    sort_out(rows.size(), {});
    check(rows, starts);
    gather_nodes(rows, starts, drafts);
    const auto& whole = batch_.whole;
    std::vector<int32_t> choices(whole.size(), -1);
    const bool greedy = std::find(whole.begin(), whole.end(), 0) != whole.end();
    last_rows_.assign(rows.size(), -1); // none of them may be drawn again
    const double begin = seconds();
    program_.replay(batch_.view(), greedy && program_.chooses() ? choices.data() : nullptr, whole.data());
    const double computed = seconds();
    drawn.assign(rows.size(), {});
    walk(rows, starts, drafts, choices, drawn);
    forward_s_ += computed - begin;
    drawing_s_ += seconds() - computed;
}

// Level by level: every row that is still going draws at the node of that level.
void Decoder::walk(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const Drafts& drafts,
                   std::vector<int32_t>& choices, std::vector<std::vector<int32_t>>& drawn) {
    std::vector<size_t> going(rows.size()), next;
    for (size_t i = 0; i < rows.size(); i++) going[i] = i;
    for (size_t level = 0; !going.empty(); level++) {
        draw_level(rows, starts, going, static_cast<int32_t>(level), choices);
        next.clear();
        for (const size_t i : going) {
            const int32_t token = choices[static_cast<size_t>(batch_.query_start[i]) + level];
            if (token >= 0 || level == 0) drawn[i].push_back(token);
            if (token < 0) continue; // further down, the next step meets the error where nothing is drafted
            int64_t& length = rows_.lengths[rows[i]];
            rows_.tokens[rows[i] * rows_.tokens_width + length++] = token;
            if (level < drafts[i].size() && drafts[i][level] == token) next.push_back(i);
        }
        going.swap(next);
    }
}

// The tokens of this level's nodes that the program has not chosen, to the choices.
void Decoder::draw_level(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const std::vector<size_t>& going,
                         int32_t level, std::vector<int32_t>& choices) {
    which_.clear(), which_params_.clear(), which_positions_.clear();
    for (const size_t i : going) {
        const int32_t node = batch_.query_start[i] + level;
        if (choices[static_cast<size_t>(node)] >= 0) {
            chosen_++;
            continue;
        }
        which_.push_back(node);
        which_params_.push_back(rows_.records[rows[i]]);
        which_positions_.push_back(starts[i] + 1 + level);
    }
    if (which_.empty()) return;
    which_tokens_.resize(which_.size());
    sampler_.sample({.logits = logits(),
                     .rows = static_cast<int64_t>(which_.size()),
                     .vocab = sampler_.vocab(),
                     .params = which_params_.data(),
                     .positions = which_positions_.data(),
                     .token = which_tokens_.data(),
                     .which = which_.data()});
    for (size_t j = 0; j < which_.size(); j++) choices[static_cast<size_t>(which_[j])] = which_tokens_[j];
}

} // namespace octavo
