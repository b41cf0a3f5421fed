// A persistent pool: the calling thread, and workers that help it.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

// Spin a little, then sleep until the word differs from old. Whoever changes it must notify.
void await_change(std::atomic<int>& word, int old);

class Pool {
public:
    explicit Pool(int size);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return size_; }

    // Call job(argument, 0) here, and job(argument, thread) on those workers that are awake in time;
    // returns when nobody is in the job any more. Work must be claimed, not dealt out by number: a
    // worker that the system has put aside must hold up nobody. Callers take turns.
    void run(void (*job)(void*, int), void* argument);

    // Workers begin with job(argument, thread), and the caller returns to other work. It goes on until join(), or until
    // leave(), which every other job begins with. False, and nothing begins: there are no workers.
    bool begin(void (*job)(void*, int), void* argument);
    // Call the begun job(argument, 0) here, and return when nobody is in it any more. False: it was left.
    bool join(const void* argument);
    // Returns when nobody is in a begun job any more, finished or not: who computes in it asks leaving() between two
    // claims, and goes if it says so. Nothing where none was begun.
    void leave();
    bool leaving() const { return leaving_.load(std::memory_order_relaxed); }

    // Whether workers should look out for the next job for longer than between two ops. A worker that sleeps comes late:
    // by 1 to 2 % of one stream's step on a Zen 5. One that looks out takes a core from whoever else has work between two
    // steps, such as a server of many streams, whose tokens came 3 to 8 % later.
    void expect_next(bool near) { next_is_near_.store(near, std::memory_order_relaxed); }

private:
    void work(int thread);
    // For whoever has the turn.
    void open(void (*job)(void*, int), void* argument);
    void close();
    void leave_begun();

    const int size_;
    std::mutex turn_;
    void (*job_)(void*, int) = nullptr;
    void* argument_ = nullptr;
    std::atomic<bool> begun_{false}; // there is a job that was neither joined nor left
    std::atomic<bool> leaving_{false};
    std::atomic<bool> next_is_near_{false};
    // Each on its own cache line: they are written by different threads at different times.
    alignas(64) std::atomic<int> started_{0}; // number of the current job; -1: stop
    alignas(64) std::atomic<bool> open_{false};
    alignas(64) std::atomic<int> inside_{0}; // workers in the job
    std::vector<std::thread> threads_;
};

// Whether n units, whoever computes them, are done.
class alignas(64) Done {
public:
    void reset() { done_.store(0, std::memory_order_relaxed); }
    void finish(int count, int n) {
        if (done_.fetch_add(count, std::memory_order_acq_rel) + count == n) done_.notify_all();
    }
    // Whether all are done; who is told so sees all that was written.
    bool finished(int n) const { return done_.load(std::memory_order_acquire) == n; }
    // Wait until all are done, and see all that was written.
    void await(int n) {
        for (int done; (done = done_.load(std::memory_order_acquire)) != n;) await_change(done_, done);
    }

private:
    std::atomic<int> done_{0};
};

// Units 0..n-1, claimed in ranges by whoever is free; finished when all are done.
class Claims : public Done {
public:
    void reset() {
        next_.store(0, std::memory_order_relaxed);
        Done::reset();
    }
    // The next range of at most `size` units; false when there is none.
    bool claim(int n, int size, int* begin, int* end) {
        if (next_.load(std::memory_order_relaxed) >= n) return false;
        *begin = next_.fetch_add(size, std::memory_order_relaxed);
        *end = *begin + size < n ? *begin + size : n;
        return *begin < n;
    }

private:
    alignas(64) std::atomic<int> next_{0};
};

// Pieces 0..n-1, dealt out in shares that are each one stretch. A thread claims its share's pieces in order, and then what
// is left of others': what it reads lies end to end, as the hardware that looks ahead in memory takes it to (two threads
// that take 26 KB of one stretch in turns read it at 0.8 of the rate: decision 30).
class Shares : public Done {
public:
    static int of(int threads) { return threads < kMost ? threads : kMost; }
    struct Piece {
        int number, end; // of its share
    };
    void reset() {
        for (auto& next : next_) next.store(0, std::memory_order_relaxed);
        Done::reset();
    }
    // False when there is none.
    bool claim(int n, int shares, int thread, Piece* piece) {
        for (int i = 0; i < shares; i++) {
            const int share = (thread + i) % shares, begin = first(n, shares, share), end = first(n, shares, share + 1);
            auto& next = next_[static_cast<size_t>(share)];
            if (next.load(std::memory_order_relaxed) >= end - begin) continue;
            *piece = {.number = begin + next.fetch_add(1, std::memory_order_relaxed), .end = end};
            if (piece->number < end) return true;
        }
        return false;
    }
    // Where a share begins, and the one before it ends.
    static int first(int n, int shares, int share) { return static_cast<int>(static_cast<int64_t>(n) * share / shares); }

private:
    enum { kMost = 16 }; // numbers of a cache line
    alignas(64) std::array<std::atomic<int>, kMost> next_{};
};

// body(unit) for units 0..n-1, on the whole pool.
template <class Body> void parallel(Pool& pool, int n, int size, Body body) {
    struct Job {
        Body* body;
        int n, size;
        Claims claims;
    } job{&body, n, size, {}};
    pool.run(
        [](void* argument, int) {
            Job& j = *static_cast<Job*>(argument);
            for (int begin, end; j.claims.claim(j.n, j.size, &begin, &end);)
                for (int i = begin; i < end; i++) (*j.body)(i);
        },
        &job);
}

} // namespace octavo
