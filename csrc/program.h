// A captured forward: ops over static buffers, replayed in one call by the whole pool.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include "kernels.h"
#include "kv.h"
#include "memory.h"
#include "pack.h"
#include "pool.h"

namespace octavo {

enum class Rows : int { Tokens, Sampled, Given };

struct Limits {
    int64_t tokens, sequences, sampled, table_width, given;

    int64_t rows(Rows kind) const { return kind == Rows::Tokens ? tokens : kind == Rows::Sampled ? sampled : given; }
};

struct Buffer { // [rows, width] f32 in the arena
    Rows rows;
    int64_t width;
    int64_t offset;
};

// What an op sees of one replay.
struct Step {
    const Kernels* kernels;
    BatchView batch;
    uint8_t* arena;
    uint8_t* scratch;
    int64_t scratch_stride;
    int threads;
    int64_t serial; // number of the replay
    bool follows;   // the replay before it was computed to its end: one that was begun may have been left
    int32_t* choices;     // Program::replay's
    const uint8_t* whole; // likewise
    int64_t* upcoming; // of each thread, kLine apart: the unit that it is likely to begin with next, or -1

    enum { kLine = 8 };

    int64_t rows(Rows kind) const {
        return kind == Rows::Tokens ? batch.tokens : kind == Rows::Sampled ? batch.sampled_rows : batch.given_rows;
    }
    float* at(const Buffer& b) const { return reinterpret_cast<float*>(arena + b.offset); }
    float* row(const Buffer& b, int64_t r) const { return at(b) + r * b.width; }
    float* scratch_of(int thread) const { return reinterpret_cast<float*>(scratch + thread * scratch_stride); }
};

// An op runs in phases; a phase is finished before the next begins. It is a number of units, which
// threads claim in ranges: a unit's result never depends on who computes it, or with which others.
class Op {
public:
    virtual ~Op() = default;
    virtual int phases() const { return 1; }
    virtual int64_t units(const Step& step, int phase) const = 0;
    virtual void run(const Step& step, int phase, int64_t begin, int64_t end, int thread) = 0;
    // Of a phase that prefetches, whose units are known before the step: the core that asks is likely to begin here.
    virtual bool prefetches(int) const { return false; }
    virtual void prefetch(const Step&, int64_t) const {}
    // So many units are computed faster together: ranges end where they do.
    virtual int together(const Step&, int) const { return 1; }
    // Of units of unequal length: where the ranges end in which they are claimed, the last where the units do.
    virtual const std::vector<int>* ranges() const { return nullptr; }
    // Whether these ranges are of like work, so that each thread may begin with a stretch of its own.
    virtual bool alike() const { return false; }
    virtual size_t scratch_bytes(const Kernels&) const { return 0; }
    // The buffer of whose rows it can find the largest number without computing them (Step::choices).
    virtual const Buffer* chooses() const { return nullptr; }
    // Of a row that it made a choice for in this step: the place of the largest number among those allowed, a bit each,
    // the first of equals; -1 where none is.
    virtual int32_t choose_among(const Step&, int64_t, const uint32_t*) const { return -1; }
    // Called before each replay, by one thread; it may be left before its end (Step::follows).
    virtual void begin(const Step&) {}
    // Throws std::invalid_argument if the batch would make this op read or write out of bounds.
    virtual void check(const BatchView&) const {}
};

class Program {
public:
    Program(std::shared_ptr<Pool> pool, const Kernels* kernels, Limits limits, int64_t arena_bytes);
    ~Program() { leave(); }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    void add(std::unique_ptr<Op> op);
    // What the ops of one kind have together, made when the first asks for it.
    template <class T> T& shared() {
        auto& found = shared_[typeid(T)];
        if (!found) found = std::make_shared<T>();
        return *static_cast<T*>(found.get());
    }
    // Ops may point into it from now on.
    void hold(std::shared_ptr<const void> what) { held_.push_back(std::move(what)); }
    // Which buffer replay returns.
    void set_result(Buffer result) { result_ = result; }
    // Throws std::invalid_argument for a batch beyond the limits or with indices out of range.
    // choices: room for the place of the largest number of each row of the result, the first of equals, or -1 where only
    // the row can say; null, and wherever a choice is -1: the result is computed. whole: 1 for each row of which the
    // result is wanted and no choice; null: there is none.
    void replay(const BatchView& batch, int32_t* choices = nullptr, const uint8_t* whole = nullptr);
    // As replay, but workers begin with it, and the caller goes on: join() or leave() must follow, and until then all that
    // is pointed to stays. Returns the number of the replay; 0, and nothing begins: there are no workers.
    int64_t begin(const BatchView& batch, int32_t* choices, const uint8_t* whole);
    // Finish what was begun under this number. False: whoever needed the program or the pool has ended it.
    bool join(int64_t number) { return number == serial_ && pool_->join(this); }
    // End what was begun, on whatever program of the pool.
    void leave() { pool_->leave(); }
    // Whether it ever makes choices.
    bool chooses() const;
    // How many there were so far, those of decoders included.
    int64_t replays() const { return serial_; }
    // From now on replays read what they would compute with, and compute nothing (reading.h), or compute again: null.
    void only_read(std::unique_ptr<const Kernels> reading);
    // Op::choose_among, of the last replay.
    int32_t choose_among(int64_t row, const uint32_t* allowed) const { return ops_.back()->choose_among(step_, row, allowed); }

    float* at(const Buffer& b) const { return reinterpret_cast<float*>(arena_.data() + b.offset); }
    const Buffer& result() const { return result_; }
    int64_t rows(Rows kind) const { return step_.rows(kind); }
    const Kernels& kernels() const { return *kernels_; }
    const Limits& limits() const { return limits_; }
    int threads() const { return pool_->size(); }

private:
    void check(const BatchView& batch) const;
    // False: there is nothing to compute.
    bool prepare(const BatchView& batch, int32_t* choices, const uint8_t* whole);
    void work(int thread);
    static void work_of(void* self, int thread) { static_cast<Program*>(self)->work(thread); }
    void run_on(size_t index, int thread);
    size_t prefetch_after(size_t index, int thread, size_t asked) const;
    struct Pieces {
        int n, grain, count, shares;
        const int* ends = nullptr;
        int begin(int piece) const;
    };
    Pieces pieces(size_t index) const;
    int units(size_t index) const { return static_cast<int>(phases_[index].first->units(step_, phases_[index].second)); }

    std::shared_ptr<Pool> pool_;
    const Kernels* kernels_;
    std::unique_ptr<const Kernels> reading_; // in their stead
    Limits limits_;
    Region arena_;
    std::vector<std::shared_ptr<const void>> held_;
    std::map<std::type_index, std::shared_ptr<void>> shared_;
    std::vector<std::unique_ptr<Op>> ops_;
    std::unique_ptr<Region> scratch_;
    size_t scratch_bytes_ = 0;
    Buffer result_{};
    Step step_{};
    int64_t serial_ = 0;
    std::vector<std::pair<Op*, int>> phases_; // of all ops, in order
    std::unique_ptr<Shares[]> claims_;        // one a phase
    std::atomic<bool> ended_{true};           // the last replay was computed to its end
    std::vector<int64_t> upcoming_;
    size_t claim_count_ = 0;
};

} // namespace octavo
