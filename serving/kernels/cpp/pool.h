// A persistent thread pool: each call runs one parallel region with barriers inside; idle threads sleep.
//
// Work is handed out unit by unit, so that a thread which is descheduled delays one unit only. A unit's result does not
// depend on the thread that computes it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#endif

namespace hk {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // most cores ignore "yield"
#endif
}

// A counter to wait on. A waiting thread spins for about 30 µs, then sleeps to leave the core to other threads.
class Gate {
 public:
  uint32_t now() const { return value_.load(std::memory_order_acquire); }

  void advance() {
    value_.fetch_add(1);
    if (sleepers_.load() == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    woken_.notify_all();
  }

  void wait_past(uint32_t seen) {
    for (int spins = 0; spins < kSpins; spins++) {
      if (now() != seen) return;
      relax();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    woken_.wait(lock, [&] { return value_.load() != seen; });
    sleepers_.fetch_sub(1);
  }

 private:
  static constexpr int kSpins = 2000;
  alignas(64) std::atomic<uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable woken_;
};

// A buffer in huge pages, if the system grants them. Growing it loses its contents.
class Buffer {
 public:
  ~Buffer() { std::free(data_); }
  float* reserve(size_t floats) {
    if (size_ < floats) {
      std::free(data_);
      const size_t bytes = (floats * sizeof(float) + kPage - 1) / kPage * kPage;
      data_ = static_cast<float*>(std::aligned_alloc(kPage, bytes));
      size_ = bytes / sizeof(float);
#if defined(MADV_HUGEPAGE)
      madvise(data_, bytes, MADV_HUGEPAGE);
#endif
    }
    return data_;
  }

 private:
  static constexpr size_t kPage = size_t{1} << 21;
  float* data_ = nullptr;
  size_t size_ = 0;
};

// A buffer of the calling thread; valid until the thread's next call.
inline float* scratch(size_t floats) {
  thread_local Buffer buffer;
  return buffer.reserve(floats);
}

// Pins threads to cores. The scheduler may place threads that wait for each other on one core, which makes them very
// slow. So if a pool has as many threads as the process has cores, each is pinned to one: workers always, the caller
// during a call.
class Cores {
 public:
  explicit Cores(int threads) : threads_(threads) {
#if defined(__linux__)
    owned_ = pthread_getaffinity_np(pthread_self(), sizeof all_, &all_) == 0 && CPU_COUNT(&all_) == threads;
#endif
  }

  // Returns whether the thread was pinned; it is not if its affinity has been changed since the pool was made.
  bool bind(int index) const {
#if defined(__linux__)
    cpu_set_t now, one;
    if (!owned_ || threads_ == 1) return false;
    if (pthread_getaffinity_np(pthread_self(), sizeof now, &now) != 0 || !CPU_EQUAL(&now, &all_)) return false;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; core++)
      if (CPU_ISSET(core, &all_) && index-- == 0) CPU_SET(core, &one);
    return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
#else
    return index < 0;
#endif
  }

  void release() const {
#if defined(__linux__)
    pthread_setaffinity_np(pthread_self(), sizeof all_, &all_);
#endif
  }

 private:
  int threads_;
#if defined(__linux__)
  bool owned_ = false;
  cpu_set_t all_;
#endif
};

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads), cores_(threads), taken_(threads) {
    for (int i = 1; i < threads; i++)
      workers_.emplace_back([this, i] {
        cores_.bind(i);
        index() = i;
        work();
      });
  }

  ~Pool() {
    stopping_ = true;
    start_.advance();
    for (auto& worker : workers_) worker.join();
  }

  int threads() const { return threads_; }

  // Runs body() once on every thread, including this one, and returns when all are done. Inside, shared() has room for
  // `shared_floats` floats. Calls from several threads wait for each other. With `single`, only this thread runs
  // body(): for work that takes less time than waking the others.
  void run(size_t shared_floats, const std::function<void()>& body, bool single = false) {
    std::lock_guard<std::mutex> one_at_a_time(run_mutex_);
    shared_ = buffer_.reserve(shared_floats);
    single_ = single;
    if (single) return body();
    body_ = &body;
    const bool bound = cores_.bind(0);
    start_.advance();
    body();
    barrier();
    if (bound) cores_.release();
  }

  float* shared() const { return shared_; }

  // To be called inside run() by all threads: calls f(0) … f(units - 1) once each, then waits for all threads. A thread
  // starts with its own contiguous part of the units and helps the others afterwards, so that data which it wrote in
  // one loop is still in its cache in the next.
  template <class F>
  void each(int64_t units, F f) {
    for (int turn = 0; turn < threads_; turn++) {
      const int64_t part = (index() + turn) % threads_, last = units * (part + 1) / threads_;
      const int64_t first = units * part / threads_;
      for (int64_t i; (i = first + taken_[part].units.fetch_add(1, std::memory_order_relaxed)) < last;) f(i);
    }
    barrier();
  }

  // The same in ranges of up to `size` items: f(first, last), last excluded.
  template <class F>
  void each_range(int64_t count, int64_t size, F f) {
    each((count + size - 1) / size, [&](int64_t i) {
      int64_t last = (i + 1) * size;
      f(i * size, last < count ? last : count);
    });
  }

 private:
  // The last thread to arrive resets the counters and releases the others.
  void barrier() {
    if (single_) return reset_taken();
    const uint32_t seen = end_.now();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) < threads_ - 1) return end_.wait_past(seen);
    arrived_.store(0, std::memory_order_relaxed);
    reset_taken();
    end_.advance();
  }

  void reset_taken() {
    for (Taken& taken : taken_) taken.units.store(0, std::memory_order_relaxed);
  }

  // Index of the calling thread in the pool: 0 for the thread that calls run().
  static int& index() {
    thread_local int index = 0;
    return index;
  }

  void work() {
    for (uint32_t seen = 0;; seen++) {
      start_.wait_past(seen);
      if (stopping_) return;
      (*body_)();
      barrier();
    }
  }

  const int threads_;
  const Cores cores_;
  std::vector<std::thread> workers_;
  std::mutex run_mutex_;
  std::atomic<bool> stopping_{false};
  bool single_ = false;  // changes only while the workers sleep
  Gate start_, end_;
  struct Taken {
    alignas(64) std::atomic<int64_t> units{0};
  };
  std::vector<Taken> taken_;  // units taken so far of each thread's part
  alignas(64) std::atomic<int> arrived_{0};
  const std::function<void()>* body_ = nullptr;
  Buffer buffer_;
  float* shared_ = nullptr;
};

}  // namespace hk
