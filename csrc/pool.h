// A persistent pool: the calling thread and `size - 1` workers run one function together.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

class Pool {
public:
    explicit Pool(int size);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return size_; }

    // Call job(argument, thread) for thread 0..size-1 at once; returns when all are done.
    // Callers take turns.
    void run(void (*job)(void*, int), void* argument);

    // Only within a job: wait until every thread of the pool is here.
    void barrier();

private:
    void work(int thread);
    static void await_change(std::atomic<int>& word, int old);

    const int size_;
    std::mutex turn_;
    void (*job_)(void*, int) = nullptr;
    void* argument_ = nullptr;
    // Each on its own cache line: they are written by different threads at different times.
    alignas(64) std::atomic<int> started_{0};  // number of the current job; -1: stop
    alignas(64) std::atomic<int> arrived_{0};  // threads at the current barrier
    alignas(64) std::atomic<int> passed_{0};   // number of barriers passed
    std::vector<std::thread> threads_;
};

} // namespace octavo
