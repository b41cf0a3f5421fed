#include "pool.h"

namespace octavo {
namespace {

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// About 50 us: longer than any gap between two ops, much shorter than a gap between two requests.
constexpr int kSpins = 1500;

} // namespace

Pool::Pool(int size) : size_(size) {
    for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { work(i); });
}

Pool::~Pool() {
    started_.store(-1, std::memory_order_release);
    started_.notify_all();
    for (auto& thread : threads_) thread.join();
}

// Spin a little, then sleep until the word differs from old.
void Pool::await_change(std::atomic<int>& word, int old) {
    for (int i = 0; i < kSpins; i++) {
        if (word.load(std::memory_order_acquire) != old) return;
        pause();
    }
    word.wait(old, std::memory_order_acquire);
}

void Pool::work(int thread) {
    int seen = 0;
    for (;;) {
        await_change(started_, seen);
        seen = started_.load(std::memory_order_acquire);
        if (seen < 0) return;
        job_(argument_, thread);
        barrier();
    }
}

void Pool::run(void (*job)(void*, int), void* argument) {
    std::lock_guard lock(turn_);
    if (size_ > 1) {
        job_ = job;
        argument_ = argument;
        int next = (started_.load(std::memory_order_relaxed) + 1) & 0x3fffffff;
        started_.store(next, std::memory_order_release);
        started_.notify_all();
    }
    job(argument, 0);
    barrier(); // nobody is in the job any more: its argument may go
}

void Pool::barrier() {
    if (size_ == 1) return;
    // Read before arriving: the last one to arrive changes it.
    int now = passed_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
        arrived_.store(0, std::memory_order_relaxed);
        passed_.store((now + 1) & 0x3fffffff, std::memory_order_release);
        passed_.notify_all();
        return;
    }
    await_change(passed_, now);
}

} // namespace octavo
