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

namespace hk {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits a little by spinning, then lets others run.
template <class Ready>
inline void spin_until(Ready ready) {
  for (int spins = 0; !ready(); spins++) {
    if (spins < 4000)
      relax();
    else
      std::this_thread::yield();
  }
}

// A buffer aligned for vectors; it grows, losing what it held, and stays.
class Buffer {
 public:
  ~Buffer() { std::free(data_); }
  float* reserve(size_t floats) {
    if (size_ < floats) {
      std::free(data_);
      size_ = (floats + 1023) / 1024 * 1024;
      data_ = static_cast<float*>(std::aligned_alloc(64, size_ * sizeof(float)));
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  size_t size_ = 0;
};

// A thread's own.
inline float* scratch(size_t floats) {
  thread_local Buffer buffer;
  return buffer.reserve(floats);
}

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this] { work(); });
  }

  ~Pool() {
    stopping_ = true;
    wake();
    for (auto& worker : workers_) worker.join();
  }

  int threads() const { return threads_; }

  // Every thread runs body() once, this one included; returns when all have. Inside, shared() has room for
  // that many floats.
  void run(size_t shared_floats, const std::function<void()>& body) {
    std::lock_guard<std::mutex> one_at_a_time(run_mutex_);
    shared_ = buffer_.reserve(shared_floats);
    body_ = &body;
    running_.store(threads_ - 1, std::memory_order_relaxed);
    wake();
    body();
    spin_until([this] { return running_.load(std::memory_order_acquire) == 0; });
  }

  float* shared() const { return shared_; }

  // Inside run(), by all threads: f(0) … f(units - 1), each once, then a barrier.
  template <class F>
  void each(int64_t units, F f) {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < units;) f(i);
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
  void barrier() {
    uint32_t now = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      generation_.fetch_add(1, std::memory_order_release);
    } else {
      spin_until([&] { return generation_.load(std::memory_order_acquire) != now; });
    }
  }

  void wake() {
    {
      std::lock_guard<std::mutex> lock(sleep_mutex_);
      epoch_.fetch_add(1, std::memory_order_release);
    }
    sleep_.notify_all();
  }

  void work() {
    uint32_t seen = 0;
    for (;;) {
      wait_for_epoch(seen);
      seen++;
      if (stopping_) return;
      (*body_)();
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  void wait_for_epoch(uint32_t seen) {
    for (int spins = 0; spins < kIdleSpins; spins++) {
      if (epoch_.load(std::memory_order_acquire) != seen) return;
      relax();
    }
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    sleep_.wait(lock, [&] { return epoch_.load(std::memory_order_acquire) != seen; });
  }

  static constexpr int kIdleSpins = 4000;  // about 50 µs: the head's call follows the layers'

  const int threads_;
  std::vector<std::thread> workers_;
  std::mutex run_mutex_, sleep_mutex_;
  std::condition_variable sleep_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  const std::function<void()>* body_ = nullptr;
  Buffer buffer_;
  float* shared_ = nullptr;
};

}  // namespace hk
