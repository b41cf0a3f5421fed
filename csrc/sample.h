// A token for each row of logits: sampling/sampler.py is the specification, and what it draws is equal.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "pool.h"

namespace octavo {

struct SampleParams { // kernels/draws.py: ROW; bind_sampling.cpp tells Python where each number lies
    uint64_t seed;
    int64_t min_position;
    double top_p, typical_p;
    float temperature, min_p, repetition_penalty, frequency_penalty, presence_penalty;
    int32_t top_k;
    uint32_t sample_index;
    int32_t num_logprobs;
};

struct TokenListsView { // kernels/draws.py: TokenLists
    const int64_t* starts = nullptr;
    const int32_t* tokens = nullptr;
    const float* values = nullptr;
    int64_t entries = 0;

    int64_t begin(int64_t row) const { return starts ? starts[row] : 0; }
    int64_t end(int64_t row) const { return starts ? starts[row + 1] : 0; }
    bool has(int64_t row) const { return begin(row) != end(row); }
};

// What changes logits before a draw; of lists without starts, and of null, there are none.
struct EditsView {
    TokenListsView bias = {}, banned = {}, seen = {};
    const uint32_t* mask = nullptr;  // [rows, ceil(vocab / 32)]
    const uint32_t* boost = nullptr; // likewise: the tokens whose logits get the row's delta
    const float* deltas = nullptr;   // [rows], with boost
    const int32_t* lines = nullptr;  // [rows]: the row's line of boost, which may have others then; null: in order
};

// Where log-probabilities go, for rows whose params ask for them.
struct ScoresView {
    double* logprobs = nullptr;
    int64_t* ranks = nullptr;
    int32_t* top_tokens = nullptr;  // [rows, top], -1 after the last
    double* top_logprobs = nullptr; // [rows, top]
    int64_t top = -1;               // -1: no row may ask for any of it
};

struct SampleBatch {
    const float* logits; // [rows, vocab]
    int64_t rows, vocab;
    const SampleParams* params = nullptr;
    const int64_t* positions = nullptr;
    EditsView edits = {};
    int32_t* token = nullptr; // the results, or why there is none, see below
    ScoresView scores = {};
    const int32_t* given = nullptr; // tokens to score instead of drawing any
    // The tokens drawn first from these finite logits were refused: what follows from that, with the mask.
    bool again = false;
    const int32_t* which = nullptr; // row of the logits of each row; null: in order
};

// Told of each token as it is drawn: null, or the row's mask, which stays until the next call: the token was refused.
using Refusal = std::function<const uint32_t*(int64_t row, int32_t token)>;

enum : int32_t { kNothingAllowed = -1, kNaN = -2, kInfinity = -3, kLeft = -4 }; // kLeft: the draw is somebody else's

enum class Stream : uint32_t { Target = 0, Again = 3 }; // sampling/noise.py

// The noise of one draw: Exp(1) variates keyed by the row's seed, sample index and position.
class RaceNoise {
public:
    RaceNoise(const SampleParams& params, int64_t position, Stream stream);
    double chunk(int64_t i) { return variate(1, i); }
    double place(int64_t i) { return variate(2, i); }

private:
    double variate(uint32_t level, int64_t i);

    uint32_t key_[2], position_[2], sample_, stream_;
    uint32_t block_ = 0; // the block that words_ hold; 0 is none
    uint32_t words_[4];
};

struct GreenList { // to be made
    uint32_t seed;
    int64_t count;
    uint32_t* bits;
};

// The first `count` of a seeded permutation of the vocabulary, as bits.
void green_list(const SamplePasses& pass, uint32_t seed, int64_t vocab, int64_t count, uint32_t* bits);

// log of a positive normal number, as sampling/elementary.py has it.
double log_of(double x);

// The tokens of one row that may be drawn: ids ascending, and their weights.
struct Candidates {
    int32_t* ids;
    float* weights;
    int64_t size;
    int64_t count; // with those of weight 0, which are not listed
};

// Sum of all weights in the order of sampling/distribution.py.
double total_of(const Candidates& c);
void keep_top_k(Candidates& c, int64_t k, std::vector<float>& work);
// Of candidates that reach down to `floor`. False, and nothing done, where they may not reach far enough.
bool keep_top_p(Candidates& c, double top_p, double whole, float floor, std::vector<float>& work);
// Of candidates of which none weighs 0.
void keep_typical(Candidates& c, double share, std::vector<float>& work);
// The smallest weight that top_p could keep of `count` weights that add up to `whole`.
float top_p_floor(double top_p, double whole, int64_t count);
// A weight above it, down to which candidates nearly always suffice, at the edge of a bin.
float top_p_guess(double top_p, double whole);
// The race, among all tokens (with each chunk's sum) or among some of them.
int32_t draw_dense(const float* weights, const double* sums, int64_t vocab, RaceNoise& noise);
int32_t draw_among(const Candidates& c, RaceNoise& noise);
// k-th largest, 1 <= k <= size; reorders x.
float kth_largest(float* x, int64_t size, int64_t k);

class Sampler {
public:
    Sampler(std::shared_ptr<Pool> pool, const Kernels* kernels, int64_t vocab);
    ~Sampler();
    Sampler(const Sampler&) = delete;
    Sampler& operator=(const Sampler&) = delete;
    int64_t vocab() const { return vocab_; }
    // Throws std::invalid_argument where a token list names a token beyond the vocabulary.
    void sample(const SampleBatch& batch);
    // And ask the refusal about each token, one after the other on the calling thread, while others draw. Refused rows
    // are drawn again. What it throws ends the batch.
    void sample(const SampleBatch& batch, const Refusal& refusal);
    // Each has bits of its own, and 0 <= count <= vocab().
    void make(const std::vector<GreenList>& lists);

private:
    class Row;
    struct Asking;
    void check(const SampleBatch& batch) const;
    // Tokens to look at.
    int64_t work(const SampleBatch& batch) const;
    bool weighs(const SampleBatch& batch) const;

    std::shared_ptr<Pool> pool_;
    const Kernels* kernels_;
    int64_t vocab_;
    std::vector<std::unique_ptr<Row>> rows_; // one a thread
};

} // namespace octavo
