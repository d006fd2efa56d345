// Splits a call's work over XLA's own thread pool. The caller works too and never waits for a helper that has not
// begun, so a busy pool (or one of a single thread) costs speed, never progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fairlane {

inline void Relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A run of phases; the units of a phase may run in any order on any thread, phases follow each other.
// Helpers join once a call and stay through all of its phases, so a phase change costs a cache line, not a wake-up.
class Team {
 public:
  // `pool` has Schedule(f) and num_threads(). `alone` asks for no helpers: work too small to share.
  template <typename Pool>
  Team(Pool& pool, bool alone) {
    threads_ = alone ? 1 : pool.num_threads();
    if (threads_ <= 1) return;
    shared_ = std::make_shared<Shared>();
    for (int64_t i = 1; i < threads_; ++i)
      pool.Schedule([shared = shared_] { Help(*shared); });
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    if (shared_) shared_->left.store(kClosed, std::memory_order_release);
  }

  int64_t threads() const { return threads_; }

  // Calls f(unit) for every unit in 0..units-1, begun in that order, and returns when all have returned.
  template <typename F>
  void Run(int64_t units, const F& f) {
    if (units <= 0) return;
    if (threads_ <= 1 || units == 1) {
      for (int64_t unit = 0; unit < units; ++unit) f(unit);
      return;
    }
    Shared& s = *shared_;
    s.call = [](const void* body, int64_t unit) { (*static_cast<const F*>(body))(unit); };
    s.body = &f;
    s.units = units;
    s.done.store(0, std::memory_order_relaxed);
    s.left.store(units, std::memory_order_release);
    while (Step(s)) {
    }
    for (int idle = 0; s.done.load(std::memory_order_acquire) != units;) Wait(idle);
  }

 private:
  static constexpr int64_t kClosed = -1;

  // `left` publishes a phase: call, body and units are written before it and only read after a unit was claimed from
  // it, and a phase does not end before its claimed units are done. So a helper that slept through a phase change
  // finds either nothing to claim or a unit of the phase that it then reads.
  struct Shared {
    alignas(64) std::atomic<int64_t> left{0};
    alignas(64) std::atomic<int64_t> done{0};
    int64_t units = 0;
    void (*call)(const void*, int64_t) = nullptr;
    const void* body = nullptr;
  };

  // Claims and does one unit; false when there is none to claim now.
  static bool Step(Shared& s) {
    int64_t left = s.left.load(std::memory_order_relaxed);
    while (left > 0) {
      if (s.left.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
        s.call(s.body, s.units - left);
        s.done.fetch_add(1, std::memory_order_acq_rel);
        return true;
      }
    }
    return false;
  }

  // Spins, and after some microseconds gives the core away: whoever is waited for may need it.
  static void Wait(int& idle) {
    if (++idle > 2048) {
      std::this_thread::yield();
    } else {
      Relax();
    }
  }

  static void Help(Shared& s) {
    int idle = 0;
    while (s.left.load(std::memory_order_acquire) != kClosed) {
      if (Step(s)) {
        idle = 0;
      } else {
        Wait(idle);
      }
    }
  }

  std::shared_ptr<Shared> shared_;
  int64_t threads_ = 1;
};

}  // namespace fairlane
