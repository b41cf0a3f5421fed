#include "program.h"

#include <algorithm>
#include <stdexcept>

namespace octavo {
namespace {

// Pieces of a phase, for each thread: fewer read faster, and a slow core holds up more. What many tokens share is computed
// for longer than it is read.
constexpr int64_t kManyTokens = 8;
constexpr int kPiecesOfFew = 3, kPiecesOfMany = 8;

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
}

} // namespace

Program::Program(std::shared_ptr<Pool> pool, const Kernels* kernels, Limits limits, int64_t arena_bytes)
    : pool_(std::move(pool)), kernels_(kernels), limits_(limits), arena_(static_cast<size_t>(arena_bytes), false),
      upcoming_(static_cast<size_t>(pool_->size() * Step::kLine), -1) {}

void Program::add(std::unique_ptr<Op> op) {
    scratch_bytes_ = std::max(scratch_bytes_, op->scratch_bytes(*kernels_));
    for (int phase = 0; phase < op->phases(); phase++) phases_.emplace_back(op.get(), phase);
    ops_.push_back(std::move(op));
}

void Program::check(const BatchView& b) const {
    require(b.tokens <= limits_.tokens, "the batch holds more tokens than the program's limit");
    require(b.sequences <= limits_.sequences, "the batch holds more sequences than the program's limit");
    require(b.sampled_rows <= limits_.sampled, "the batch samples more rows than the program's limit");
    require(b.table_width <= limits_.table_width, "the batch's page tables are wider than the program's limit");
    require(b.cross_width <= limits_.table_width, "the encoder's page tables are wider than the program's limit");
    require(b.given_rows >= 0, "the rows given with the batch are counted from 0");
    require(b.given_rows <= limits_.given, "the batch is given more rows than the program's limit");
    require(b.query_start[0] == 0 && b.query_start[b.sequences] == b.tokens, "query_start does not span the tokens");
    for (int64_t s = 0; s < b.sequences; s++)
        require(b.query_start[s] <= b.query_start[s + 1], "query_start must ascend");
    for (int64_t s = 0; s < b.sequences; s++) {
        require(b.context_lens[s] >= 0, "a context length is negative");
        for (int64_t t = b.query_start[s]; t < b.query_start[s + 1]; t++)
            require(b.positions[t] >= 0 && b.positions[t] < b.context_lens[s], "a position lies outside its context");
    }
    for (int64_t r = 0; r < b.sampled_rows; r++)
        require(b.sampled[r] >= 0 && b.sampled[r] < b.tokens, "a sampled row is no token of the batch");
    for (const auto& op : ops_) op->check(b);
}

bool Program::chooses() const {
    const Buffer* chosen = ops_.empty() ? nullptr : ops_.back()->chooses();
    return chosen && chosen->offset == result_.offset;
}

void Program::only_read(std::unique_ptr<const Kernels> reading) {
    leave(); // workers of a step that was begun have the kernels of until now
    reading_ = std::move(reading);
    step_.kernels = reading_ ? reading_.get() : kernels_; // choose_among's
}

void Program::replay(const BatchView& batch, int32_t* choices, const uint8_t* whole) {
    if (prepare(batch, choices, whole)) pool_->run(&Program::work_of, this);
}

int64_t Program::begin(const BatchView& batch, int32_t* choices, const uint8_t* whole) {
    const bool begun = pool_->size() > 1 && prepare(batch, choices, whole) && pool_->begin(&Program::work_of, this);
    return begun ? serial_ : 0;
}

bool Program::prepare(const BatchView& batch, int32_t* choices, const uint8_t* whole) {
    check(batch);
    leave(); // a step that was begun reads what is written here
    const auto stride = static_cast<int64_t>((scratch_bytes_ + 4095) / 4096 * 4096);
    if (!scratch_ && stride) scratch_ = std::make_unique<Region>(static_cast<size_t>(stride) * pool_->size(), false);
    if (claim_count_ != phases_.size()) {
        claims_ = std::make_unique<Shares[]>(phases_.size());
        claim_count_ = phases_.size();
    }
    for (size_t i = 0; i < claim_count_; i++) claims_[i].reset();
    step_ = Step{.kernels = reading_ ? reading_.get() : kernels_,
                 .batch = batch,
                 .arena = arena_.data(),
                 .scratch = scratch_ ? scratch_->data() : nullptr,
                 .scratch_stride = stride,
                 .threads = pool_->size(),
                 .serial = ++serial_,
                 .follows = ended_.exchange(false, std::memory_order_relaxed),
                 .choices = chooses() ? choices : nullptr,
                 .whole = whole,
                 .upcoming = upcoming_.data()};
    for (auto& op : ops_) op->begin(step_);
    pool_->expect_next(batch.sequences == 1);
    return batch.tokens != 0;
}

// A few ranges for each thread, so that one who is slow or put aside does not hold up the rest; but not many, because
// streaming likes long ones. Of like length: one range more or less than the others have is a tenth of a matrix of 576
// rows. (Those of unlike work are claimed in turn, as they come: they are one share.)
Program::Pieces Program::pieces(size_t index) const {
    const auto [op, phase] = phases_[index];
    const int n = units(index), size = pool_->size(), each = step_.batch.tokens < kManyTokens ? kPiecesOfFew : kPiecesOfMany;
    const int most = size == 1 ? 1 : size * each; // every thread sees the same number
    const int shares = Shares::of(size);
    if (const std::vector<int>* ends = op->ranges())
        return {.n = n, .grain = 1, .count = static_cast<int>(ends->size()), .shares = op->alike() ? shares : 1, .ends = ends->data()};
    const int grain = op->together(step_, phase), grains = (n + grain - 1) / grain;
    return {.n = n, .grain = grain, .count = std::min(grains, most), .shares = shares};
}

int Program::Pieces::begin(int piece) const {
    if (ends) return piece ? ends[piece - 1] : 0;
    return std::min(Shares::first((n + grain - 1) / grain, count, piece) * grain, n);
}

void Program::work(int thread) {
    for (size_t index = 0, asked = 0; index < phases_.size(); index++) {
        const auto [op, phase] = phases_[index];
        const Pieces all = pieces(index);
        Shares& claims = claims_[index];
        const int apart = (pool_->size() + all.shares - 1) / all.shares; // threads claim a share's pieces in turn
        int done = 0; // said once: whoever says it waits until all that was written has left for memory
        for (Shares::Piece piece{}; !pool_->leaving() && claims.claim(all.count, all.shares, thread, &piece);) {
            const int begin = all.begin(piece.number), end = all.begin(piece.number + 1), later = piece.number + apart;
            upcoming_[static_cast<size_t>(thread * Step::kLine)] = later < piece.end ? all.begin(later) : -1;
            op->run(step_, phase, begin, end, thread);
            if (all.n == 1) run_on(index, thread);
            done += end - begin;
        }
        if (done) claims.finish(done, all.n);
        if (pool_->leaving()) return; // (who waits does so for claims of others, which they finish before they leave)
        if (all.n && !done && claims.finished(all.n)) continue; // it joined later, and must catch up
        asked = prefetch_after(index, thread, asked);
        claims.await(all.n);
    }
    ended_.store(true, std::memory_order_relaxed); // (whoever is here has seen the end of all phases)
}

// What the next phases begin with, while the others are still busy with this one. Returns the phase that was asked for,
// which is not asked for again.
size_t Program::prefetch_after(size_t index, int thread, size_t asked) const {
    for (size_t next = index + 1; next < phases_.size() && next <= index + 2; next++) {
        const auto [op, phase] = phases_[next];
        if (!op->prefetches(phase)) continue;
        if (next == asked) return asked;
        const Pieces all = pieces(next);
        const int share = thread % all.shares, first = Shares::first(all.count, all.shares, share) + thread / all.shares;
        if (first < Shares::first(all.count, all.shares, share + 1)) op->prefetch(step_, all.begin(first));
        return next;
    }
    return asked;
}

// Phases of one unit that follow one, as a lone token's norms and sums do: whoever has computed it goes on with
// them, while the others wait for it once instead of after each.
void Program::run_on(size_t index, int thread) {
    size_t next = index + 1;
    Shares::Piece piece{};
    for (; next < phases_.size() && units(next) == 1 && claims_[next].claim(1, pieces(next).shares, thread, &piece); next++)
        phases_[next].first->run(step_, phases_[next].second, 0, 1, thread);
    while (--next > index) claims_[next].finish(1, 1);
}

} // namespace octavo
