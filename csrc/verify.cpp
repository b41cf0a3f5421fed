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
BatchView Decoder::gather_nodes(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const Drafts& drafts) {
    token_ids_.clear(), node_positions_.clear(), slots_.clear(), sliding_slots_.clear();
    query_start_.assign(1, 0), context_lens_.clear();
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
            token_ids_.push_back(token), node_positions_.push_back(at);
            slots_.push_back(rows_.pages[page] * size + at % size);
            if (rows_.sliding_pages) sliding_slots_.push_back(rows_.sliding_pages[page] * size + at % size);
        }
        query_start_.push_back(static_cast<int32_t>(token_ids_.size())), context_lens_.push_back(end);
        last = std::max(last, end - 1);
    }
    const int64_t width = last / size + 1;
    page_tables_.clear(), sliding_tables_.clear();
    for (const int32_t row : rows) {
        const int64_t table = row * rows_.pages_width;
        page_tables_.insert(page_tables_.end(), rows_.pages + table, rows_.pages + table + width);
        if (rows_.sliding_pages)
            sliding_tables_.insert(sliding_tables_.end(), rows_.sliding_pages + table, rows_.sliding_pages + table + width);
    }
    count_to(token_ids_.size());
    return view(static_cast<int64_t>(rows.size()), width, node_positions_.data(), query_start_.data());
}

void Decoder::verify(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const Drafts& drafts,
                     std::vector<std::vector<int32_t>>& drawn) {
    require(drafts.size() == rows.size(), "rows and drafts differ in length");
    sort_out(rows.size(), {});
    check(rows, starts);
    const BatchView batch = gather_nodes(rows, starts, drafts);
    std::vector<int32_t> choices(token_ids_.size(), -1);
    whole_.assign(token_ids_.size(), 1);
    bool greedy = false;
    for (size_t i = 0; i < rows.size(); i++) {
        if (rows_.records[rows[i]].temperature != 0.0f) continue;
        greedy = true;
        std::fill(whole_.begin() + query_start_[i], whole_.begin() + query_start_[i + 1], 0);
    }
    last_rows_.assign(rows.size(), -1); // none of them may be drawn again
    const double begin = seconds();
    program_.replay(batch, greedy && program_.chooses() ? choices.data() : nullptr, whole_.data());
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
            const int32_t token = choices[static_cast<size_t>(query_start_[i]) + level];
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
        const int32_t node = query_start_[i] + level;
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
