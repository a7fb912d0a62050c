// A team of threads that stays: one parallel region a call, barriers inside, asleep when idle.
//
// Work is handed out unit by unit, so that a thread which the system takes away delays one unit only.
// Who computes a unit never changes its result.
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
#endif
}

// A counter to wait on: spins for some 30 µs, then sleeps, so that whoever is waited for gets the core.
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

// A buffer in huge pages, where the system has them on request; it grows, losing what it held, and stays.
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

// A thread's own.
inline float* scratch(size_t floats) {
  thread_local Buffer buffer;
  return buffer.reserve(floats);
}

// Threads that wait for each other look idle enough to the system to share one core, and then crawl. So when
// a pool takes all cores that the process may use, each of its threads keeps to one of them: the workers
// always, the caller during a call.
class Cores {
 public:
  explicit Cores(int threads) : threads_(threads) {
#if defined(__linux__)
    owned_ = pthread_getaffinity_np(pthread_self(), sizeof all_, &all_) == 0 && CPU_COUNT(&all_) == threads;
#endif
  }

  // Whether the thread was bound; not when somebody chose other cores for it meanwhile.
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

  // Every thread runs body() once, this one included; returns when all have. Inside, shared() has room for
  // that many floats. Calls from several threads wait for each other. What is done sooner than another thread
  // wakes up is for this one `alone`.
  void run(size_t shared_floats, const std::function<void()>& body, bool alone = false) {
    std::lock_guard<std::mutex> one_at_a_time(run_mutex_);
    shared_ = buffer_.reserve(shared_floats);
    alone_ = alone;
    if (alone) return body();
    body_ = &body;
    const bool bound = cores_.bind(0);
    start_.advance();
    body();
    barrier();
    if (bound) cores_.release();
  }

  float* shared() const { return shared_; }

  // Inside run(), by all threads: f(0) … f(units - 1), each once, then a barrier. A thread begins with its own
  // part of the units, neighbours, and helps the others afterwards: what it wrote for its part of the rows in one
  // such loop is still in its cache in the next.
  template <class F>
  void each(int64_t units, F f) {
    for (int turn = 0; turn < threads_; turn++) {
      const int64_t part = (index() + turn) % threads_, last = units * (part + 1) / threads_;
      const int64_t first = units * part / threads_;
      for (int64_t i; (i = first + taken_[part].units.fetch_add(1, std::memory_order_relaxed)) < last;) f(i);
    }
    barrier();
  }

  // The same with units of up to `size` neighbours: f(first, last), last excluded.
  template <class F>
  void each_range(int64_t count, int64_t size, F f) {
    each((count + size - 1) / size, [&](int64_t i) {
      int64_t last = (i + 1) * size;
      f(i * size, last < count ? last : count);
    });
  }

 private:
  // The last to come resets the counters and lets the others go.
  void barrier() {
    if (alone_) return forget_taken();
    const uint32_t seen = end_.now();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) < threads_ - 1) return end_.wait_past(seen);
    arrived_.store(0, std::memory_order_relaxed);
    forget_taken();
    end_.advance();
  }

  void forget_taken() {
    for (Taken& taken : taken_) taken.units.store(0, std::memory_order_relaxed);
  }

  // Of the calling thread: 0 for whoever calls run().
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
  bool alone_ = false;  // changes while the others sleep
  Gate start_, end_;
  struct Taken {
    alignas(64) std::atomic<int64_t> units{0};
  };
  std::vector<Taken> taken_;  // of each thread's part
  alignas(64) std::atomic<int> arrived_{0};
  const std::function<void()>* body_ = nullptr;
  Buffer buffer_;
  float* shared_ = nullptr;
};

}  // namespace hk
