// Steps in which every row computes its last token and draws the next one: batch, forward and draw in one call.
#pragma once
#include <vector>

#include "program.h"
#include "sample.h"

namespace octavo {

// What is known of each row, [rows, ...]: runtime/states.py, and the records of sampling/rows.py.
struct DecodeRows {
    int32_t* tokens;
    int64_t tokens_width;
    int64_t* lengths;
    int64_t num_rows;
    const int32_t* pages;
    int64_t pages_width, page_size;
    const SampleParams* params;
    const int32_t* local_pages; // of the layers with a window; null where they share pages with the others
};

class Decoder {
public:
    // program: of logits [rows, vocabulary]. Both it and the sampler outlive the decoder.
    Decoder(Program& program, Sampler& sampler, const DecodeRows& rows);
    // The token at position starts[i] of rows[i] is computed, the one after it drawn and appended. An error
    // (sample.h) in its place leaves that row as it was. mask: as SampleBatch has it, a line for each of `rows`.
    // refusal, if there is one, is asked about each token, and a refused row is drawn again.
    // Throws std::invalid_argument for rows, positions or pages out of range, and where a row asks for
    // log-probabilities: nothing has changed then.
    void step(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const uint32_t* mask,
              const Refusal& refusal, std::vector<int32_t>& drawn);
    // The tokens that the last step drew for its rows `indices` (places in `rows`) were refused: others are drawn
    // from the same logits under the mask, a line for each index, and take their places. An error takes one away.
    // Throws std::invalid_argument where an index names no token of the last step, or one drawn again already.
    void redraw(const std::vector<int32_t>& indices, const uint32_t* mask, std::vector<int32_t>& drawn);
    int64_t vocab() const { return sampler_.vocab(); }

    // Seconds spent so far in forwards and in draws, with what refusals took.
    double forward_s() const { return forward_s_; }
    double drawing_s() const { return drawing_s_; }
    // Tokens so far that were chosen without their logits (Program::replay).
    int64_t chosen() const { return chosen_; }

private:
    int64_t check(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts) const;
    BatchView gather(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, int64_t width);
    void draw(int64_t rows, const uint32_t* mask, const Refusal& refusal, std::vector<int32_t>& drawn);
    void draw_rest(std::vector<int32_t>& drawn);
    void gather_local(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, int64_t width);

    Program& program_;
    Sampler& sampler_;
    DecodeRows rows_;
    double forward_s_ = 0.0, drawing_s_ = 0.0;
    int64_t chosen_ = 0;
    // The batch; each is as long as the longest yet.
    std::vector<int32_t> token_ids_, slots_, counting_, context_lens_, page_tables_, local_slots_, local_tables_;
    std::vector<int64_t> positions_, no_starts_;
    std::vector<SampleParams> params_;
    std::vector<int32_t> last_rows_; // of the last step; -1 once one was drawn again
};

} // namespace octavo
