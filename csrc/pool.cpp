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

// 40 to 60 us: longer than any gap between two ops.
constexpr int kSpins = 1500;
// 160 to 240 us: longer than what an engine does between two steps of one stream, much shorter than a gap between requests.
constexpr int kSpinsForNext = 6000;

void spin_then_sleep(std::atomic<int>& word, int old, int spins) {
    for (int i = 0; i < spins; i++) {
        if (word.load(std::memory_order_acquire) != old) return;
        pause();
    }
    word.wait(old, std::memory_order_acquire);
}

} // namespace

void await_change(std::atomic<int>& word, int old) { spin_then_sleep(word, old, kSpins); }

Pool::Pool(int size) : size_(size) {
    for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { work(i); });
}

Pool::~Pool() {
    leave();
    started_.store(-1, std::memory_order_release);
    started_.notify_all();
    for (auto& thread : threads_) thread.join();
}

void Pool::work(int thread) {
    for (int seen = 0;;) {
        spin_then_sleep(started_, seen, next_is_near_.load(std::memory_order_relaxed) ? kSpinsForNext : kSpins);
        seen = started_.load(std::memory_order_acquire);
        if (seen < 0) return;
        // First we are inside, then we look whether it is open; run() closes, then looks whether
        // anybody is inside. In one total order, one of us sees the other.
        inside_.fetch_add(1, std::memory_order_seq_cst);
        if (open_.load(std::memory_order_seq_cst)) job_(argument_, thread);
        if (inside_.fetch_sub(1, std::memory_order_seq_cst) == 1) inside_.notify_all();
    }
}

void Pool::open(void (*job)(void*, int), void* argument) {
    job_ = job;
    argument_ = argument;
    open_.store(true, std::memory_order_seq_cst);
    started_.store((started_.load(std::memory_order_relaxed) + 1) & 0x3fffffff, std::memory_order_release);
    started_.notify_all();
}

void Pool::close() {
    open_.store(false, std::memory_order_seq_cst);
    for (int inside; (inside = inside_.load(std::memory_order_seq_cst)) != 0;) await_change(inside_, inside);
}

void Pool::leave_begun() {
    if (!begun_) return;
    leaving_.store(true, std::memory_order_relaxed);
    close();
    leaving_.store(false, std::memory_order_relaxed);
    begun_ = false;
}

void Pool::run(void (*job)(void*, int), void* argument) {
    std::lock_guard lock(turn_);
    leave_begun();
    if (size_ == 1) return job(argument, 0);
    open(job, argument);
    job(argument, 0);
    close();
}

bool Pool::begin(void (*job)(void*, int), void* argument) {
    std::lock_guard lock(turn_);
    leave_begun();
    if (size_ == 1) return false;
    open(job, argument);
    return begun_ = true;
}

bool Pool::join(const void* argument) {
    std::lock_guard lock(turn_);
    if (!begun_ || argument_ != argument) return false;
    job_(argument_, 0);
    close();
    begun_ = false;
    return true;
}

// Without the turn where there is nothing to leave: whoever has it may be waiting for the interpreter, which a caller that
// frees a program holds.
void Pool::leave() {
    if (!begun_.load(std::memory_order_acquire)) return;
    std::lock_guard lock(turn_);
    leave_begun();
}

} // namespace octavo
