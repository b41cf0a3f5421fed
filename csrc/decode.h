// Steps in which every row computes its last token and draws the next one: batch, forward and draw in one call.
#pragma once
#include <vector>

#include "program.h"
#include "sample.h"

namespace octavo {

// What is known of each row, [rows, ...]: runtime/states.py, and the records of sampling/sampling_rows.py.
struct DecodeRows {
    int32_t* tokens;
    int64_t tokens_width;
    int64_t* lengths;
    int64_t num_rows;
    const int32_t* pages;
    int64_t pages_width, page_size;
    const SampleParams* records;
    const int32_t* sliding_pages; // of the layers with a window; null where they share pages with the others
};

// Places in a step's rows, each once: of rows whose draws are left to whoever has their logits, of those whose tokens are
// asked about (Refusal), of those whose log-probabilities go to the scores, and of those that the boost lifts; the latter
// two have a line each, in the same order. lists: what the boost holds once they are made.
struct OtherRows {
    std::vector<int32_t> left, asked, scored, lifted;
    ScoresView scores = {};
    EditsView boost = {};
    std::vector<GreenList> lists = {};
};

// What a step computes, gathered from its rows.
struct DecodeBatch {
    std::vector<int32_t> token_ids, positions, slots, query_start, context_lens, page_tables, sliding_slots, sliding_tables;
    std::vector<int32_t> sampled; // all of its tokens: 0, 1, ...
    std::vector<uint8_t> whole;   // of each, as Program::replay wants it

    bool operator==(const DecodeBatch&) const = default;
    BatchView view() const;
};

using Drafts = std::vector<std::vector<int32_t>>; // of each row

class Decoder {
public:
    // program: of logits [rows, vocabulary]. Both it and the sampler outlive the decoder.
    Decoder(Program& program, Sampler& sampler, const DecodeRows& rows);
    ~Decoder() { program_.leave(); }
    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;
    // The token at position starts[i] of rows[i] is computed, the one after it drawn and appended. An error
    // (sample.h) in its place leaves that row as it was. Of rows whose draws are left there are logits(), and kLeft.
    // Of those asked about, a refused one is drawn again.
    // Throws std::invalid_argument for rows, positions, pages or places out of range, and where a row that is neither left
    // nor scored asks for log-probabilities: nothing has changed then.
    void step(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const OtherRows& others,
              const Refusal& refusal, std::vector<int32_t>& drawn);
    // A step whose rows verify chains: row i computes the token at starts[i], its last known one, and drafts[i] after it.
    // It draws after the former and goes on after each draft that is what it has drawn. drawn[i]: those tokens, which are
    // appended; or an error alone, which leaves the row as it was.
    // Throws std::invalid_argument as step() does, and where a draft does not follow the row's last token, is no token, or
    // is beyond what the row holds.
    void verify(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const Drafts& drafts,
                std::vector<std::vector<int32_t>>& drawn);
    // Of the last step, [its rows, vocab()]: whole for rows that were left, elsewhere anything.
    float* logits() const { return program_.at(program_.result()); }
    int64_t logit_rows() const { return program_.rows(program_.result().rows); }
    // The tokens that the last step drew for its rows `indices` (places in `rows`) were refused: others are drawn
    // from the same logits under the mask, a line for each index, and take their places. An error takes one away.
    // Throws std::invalid_argument where an index names no token of the last step, or one that was drawn again
    // already, left to others, or chosen without its logits.
    void redraw(const std::vector<int32_t>& indices, const uint32_t* mask, std::vector<int32_t>& drawn);
    int64_t vocab() const { return sampler_.vocab(); }

    // Seconds spent so far in forwards and in draws, with what refusals took; of a step that workers had begun, only
    // what was left of it, and what it takes to begin the next.
    double forward_s() const { return forward_s_; }
    double drawing_s() const { return drawing_s_; }
    // Tokens so far that were chosen without their logits (Program::replay).
    int64_t chosen() const { return chosen_; }
    // Whether workers begin with a lone row's next step after each that has drawn for it: the next call takes it up if it
    // is that one. Where they have, the last step has no logits any more, and what it has drawn may not be drawn again.
    bool ahead() const { return ahead_; }
    void set_ahead(bool ahead) { ahead_ = ahead; }
    // Steps so far that workers had begun before they were asked for.
    int64_t taken_up() const { return taken_up_; }

private:
    static double seconds();
    void gather_nodes(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const Drafts& drafts);
    // choices: of each node, or -1; drawn there.
    void walk(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const Drafts& drafts,
              std::vector<int32_t>& choices, std::vector<std::vector<int32_t>>& drawn);
    void draw_level(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, const std::vector<size_t>& going,
                    int32_t level, std::vector<int32_t>& choices);
    int64_t check(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts) const;
    void gather(const std::vector<int32_t>& rows, const std::vector<int32_t>& starts, int64_t width, DecodeBatch& to) const;
    void compute(std::vector<int32_t>& drawn);
    void begin_next(int32_t row, int32_t start);
    void sort_out(size_t rows, const OtherRows& others);
    void draw(const Refusal& refusal, const OtherRows& others, std::vector<int32_t>& drawn);
    // Of the rows which_, of their logits.
    void draw_some(const Refusal& refusal, const EditsView& edits, const ScoresView& scores, std::vector<int32_t>& drawn);
    void draw(const SampleBatch& batch, const Refusal& refusal);
    void ask(const Refusal& refusal, std::vector<int32_t>& drawn);

    Program& program_;
    Sampler& sampler_;
    DecodeRows rows_;
    double forward_s_ = 0.0, drawing_s_ = 0.0;
    int64_t chosen_ = 0, taken_up_ = 0;
    bool ahead_ = false;
    DecodeBatch batch_;
    // What workers have begun with. It changes only behind compute(), which has joined them or made them leave. begun_:
    // Program::begin's number.
    DecodeBatch next_;
    int64_t begun_ = 0;
    int32_t next_choice_ = -1;
    std::vector<int64_t> positions_;
    std::vector<SampleParams> params_;
    // 1 for each row that is; chose_: it has its choice.
    std::vector<uint8_t> asked_, left_, scored_, lifted_, chose_;
    std::vector<int32_t> last_rows_; // of the last step; -1 where no token may be drawn again
    // Of rows that are drawn apart from others.
    std::vector<int32_t> which_, which_tokens_;
    std::vector<int64_t> which_positions_;
    std::vector<SampleParams> which_params_;
};

} // namespace octavo
