// One row after the other, and rows over threads.
#include <atomic>
#include <exception>
#include <limits>
#include <stdexcept>

#include "sample_row.h"

namespace octavo {
namespace {

constexpr int64_t kWorthWaking = 1 << 17; // tokens to look at; less is done by the time others wake

} // namespace

Sampler::Sampler(std::shared_ptr<Pool> pool, const Kernels* kernels, int64_t vocab)
    : pool_(std::move(pool)), kernels_(kernels), vocab_(vocab) {
    if (vocab < 1 || vocab > std::numeric_limits<int32_t>::max()) throw std::invalid_argument("no such vocabulary");
    for (int i = 0; i < pool_->size(); i++) rows_.push_back(std::make_unique<Row>(kernels_->sample, vocab));
}

Sampler::~Sampler() = default;

void Sampler::check(const SampleBatch& b) const {
    for (const TokenListsView* lists : {&b.edits.bias, &b.edits.banned, &b.edits.seen}) {
        if (!lists->starts) continue;
        bool good = lists->starts[0] == 0 && lists->starts[b.rows] == lists->entries;
        for (int64_t r = 0; good && r < b.rows; r++) good = lists->starts[r] <= lists->starts[r + 1];
        if (!good) throw std::invalid_argument("the starts of a token list do not span it");
        for (int64_t e = 0; e < lists->entries; e++)
            if (lists->tokens[e] < 0 || lists->tokens[e] >= vocab_)
                throw std::invalid_argument("a token list names a token beyond the vocabulary");
    }
    for (int64_t r = 0; b.given && r < b.rows; r++)
        if (b.given[r] < 0 || b.given[r] >= vocab_) throw std::invalid_argument("a token to score is beyond the vocabulary");
    for (int64_t r = 0; r < b.rows; r++)
        if (b.params[r].num_logprobs > b.scores.top) throw std::invalid_argument("a row asks for more logprobs than there is room for");
}

int64_t Sampler::work(const SampleBatch& batch) const {
    const Row& row = *rows_[0];
    int64_t tokens = batch.again ? 0 : batch.rows * vocab_;
    for (int64_t r = 0; batch.again && r < batch.rows; r++) tokens += row.allowed(batch.edits.mask + r * row.words());
    return tokens * (weighs(batch) ? 4 : 1);
}

bool Sampler::weighs(const SampleBatch& batch) const {
    return std::any_of(batch.params, batch.params + batch.rows, [&](const SampleParams& p) { return rows_[0]->weighs(p); });
}

void Sampler::sample(const SampleBatch& batch) {
    check(batch);
    const int threads = pool_->size();
    const int64_t chunks = rows_[0]->chunks();
    if (threads == 1 || work(batch) < kWorthWaking) {
        for (int64_t r = 0; r < batch.rows; r++) rows_[0]->all(batch, r);
        return;
    }
    if (batch.rows < threads) { // rows are shared out in blocks of chunks
        const int rows = static_cast<int>(batch.rows);
        const int64_t block = (chunks + threads - 1) / threads;
        const int blocks = static_cast<int>((chunks + block - 1) / block);
        auto each_block = [&](auto body) {
            parallel(*pool_, rows * blocks, 1, [&](int unit) {
                const int64_t begin = unit % blocks * block;
                body(*rows_[static_cast<size_t>(unit / blocks)], begin, std::min(begin + block, chunks));
            });
        };
        for (int r = 0; r < rows; r++) rows_[static_cast<size_t>(r)]->start(batch, r);
        each_block([](Row& row, int64_t begin, int64_t end) { row.look(begin, end); });
        parallel(*pool_, rows, 1, [&](int r) { rows_[static_cast<size_t>(r)]->edit(); });
        if (weighs(batch)) each_block([](Row& row, int64_t begin, int64_t end) { row.weigh(begin, end); });
        parallel(*pool_, rows, 1, [&](int r) { rows_[static_cast<size_t>(r)]->finish(); });
        return;
    }
    struct Job {
        Sampler* self;
        const SampleBatch* batch;
        Claims claims;
    } job{this, &batch, {}};
    pool_->run(
        [](void* argument, int thread) {
            Job& j = *static_cast<Job*>(argument);
            for (int begin, end; j.claims.claim(static_cast<int>(j.batch->rows), 1, &begin, &end);)
                j.self->rows_[static_cast<size_t>(thread)]->all(*j.batch, begin);
        },
        &job);
}

// The calling thread asks about what is drawn, and draws while there is nothing to ask; the others draw.
struct Sampler::Asking {
    Sampler& self;
    const SampleBatch& batch;
    const Refusal& refusal;
    Claims claims;
    std::vector<std::atomic<int>> drawn;
    std::exception_ptr thrown;

    Asking(Sampler& sampler, const SampleBatch& rows, const Refusal& asked)
        : self(sampler), batch(rows), refusal(asked), drawn(static_cast<size_t>(rows.rows)) {}

    bool draw(int thread) {
        int begin, end;
        if (!claims.claim(static_cast<int>(batch.rows), 1, &begin, &end)) return false;
        self.rows_[static_cast<size_t>(thread)]->all(batch, begin);
        drawn[static_cast<size_t>(begin)].store(1, std::memory_order_release);
        drawn[static_cast<size_t>(begin)].notify_all();
        return true;
    }
    void ask(int64_t row) {
        if (const uint32_t* mask = refusal(row, batch.token[row])) self.rows_[0]->all(batch, row, mask);
    }
    void follow() {
        std::vector<bool> asked(drawn.size());
        for (size_t first = 0; first < drawn.size();) {
            size_t row = first; // of those that are drawn, the first: few before it are not
            while (row < drawn.size() && (asked[row] || !drawn[row].load(std::memory_order_acquire))) row++;
            if (row < drawn.size()) {
                ask(static_cast<int64_t>(row));
                asked[row] = true;
                while (first < drawn.size() && asked[first]) first++;
            } else if (!draw(0)) {
                await_change(drawn[first], 0);
            }
        }
    }
};

void Sampler::sample(const SampleBatch& batch, const Refusal& refusal) {
    Asking asking(*this, batch, refusal);
    if (batch.rows < pool_->size() || work(batch) < kWorthWaking) {
        sample(batch);
        for (int64_t row = 0; row < batch.rows; row++) asking.ask(row);
        return;
    }
    check(batch);
    pool_->run(
        [](void* argument, int thread) {
            Asking& a = *static_cast<Asking*>(argument);
            if (thread == 0) {
                try {
                    a.follow();
                } catch (...) { // the others are still inside
                    a.thrown = std::current_exception();
                }
            } else {
                while (a.draw(thread)) {}
            }
        },
        &asking);
    if (asking.thrown) std::rethrow_exception(asking.thrown);
}

} // namespace octavo
