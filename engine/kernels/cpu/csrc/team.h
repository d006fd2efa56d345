// Splits a call's work over XLA's own thread pool. The caller works too and never waits for a helper that has not
// begun, so a busy pool (or one of a single thread) costs speed, never progress.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

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
// Each thread has a share of the units, the same part of every phase, so that what it wrote in one phase it finds in its
// own cache in the next: between cores that share no cache a line takes as long as from memory. Whoever is done with
// its share takes from the others'.
class Team {
 public:
  // `pool` has Schedule(f) and num_threads(). `alone` asks for no helpers: work too small to share.
  template <typename Pool>
  Team(Pool& pool, bool alone) {
    threads_ = alone ? 1 : ThreadsOf(pool);
    if (threads_ <= 1) return;
    shared_ = std::make_shared<Shared>(threads_);
    for (int64_t thread = 1; thread < threads_; ++thread)
      pool.Schedule([shared = shared_, thread] { Help(*shared, thread); });
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    if (shared_) shared_->phase.store(kClosed, std::memory_order_release);
  }

  // XLA answers 0 where it can not tell.
  template <typename Pool>
  static int64_t ThreadsOf(const Pool& pool) { return std::max<int64_t>(pool.num_threads(), 1); }

  int64_t threads() const { return threads_; }
  // Of a phase of so many units: the first of a thread's share, and whose share a unit is in.
  int64_t ShareBegin(int64_t thread, int64_t units) const { return FirstOf(thread, threads_, units); }
  int64_t ShareOf(int64_t unit, int64_t units) const { return ((unit + 1) * threads_ - 1) / units; }

  // Calls f(unit) for every unit in 0..units-1, those of a share begun in that order, and returns when all have returned.
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
    for (int64_t thread = 0; thread < threads_; ++thread)
      s.shares[thread].left.store(ShareBegin(thread + 1, units) - ShareBegin(thread, units), std::memory_order_release);
    s.phase.store(s.phase.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    Work(s, 0);
    for (int idle = 0; s.done.load(std::memory_order_acquire) != units;) Wait(idle);
  }

 private:
  static constexpr int64_t kClosed = -1;

  static int64_t FirstOf(int64_t thread, int64_t threads, int64_t units) { return units * thread / threads; }

  struct alignas(64) Share {
    std::atomic<int64_t> left{0};
  };

  // A share's `left` publishes a phase: call, body and units are written before it and only read after a unit was claimed
  // from it, and a phase does not end before its claimed units are done. So a helper that slept through a phase change
  // finds either nothing to claim or a unit of the phase that it then reads. `phase` only says that it is worth looking.
  struct Shared {
    explicit Shared(int64_t threads) : shares(threads) {}
    alignas(64) std::atomic<int64_t> phase{0};
    int64_t units = 0;
    void (*call)(const void*, int64_t) = nullptr;
    const void* body = nullptr;
    alignas(64) std::atomic<int64_t> done{0};
    std::vector<Share> shares;
  };

  // Does units as long as there are any to claim, those of the thread's own share first.
  static void Work(Shared& s, int64_t thread) {
    const int64_t threads = (int64_t)s.shares.size();
    int64_t done = 0;
    for (int64_t i = 0; i < threads; ++i) {
      const int64_t share = (thread + i) % threads;
      std::atomic<int64_t>& left = s.shares[share].left;
      for (int64_t count = left.load(std::memory_order_relaxed); count > 0;) {
        if (!left.compare_exchange_weak(count, count - 1, std::memory_order_acq_rel, std::memory_order_relaxed)) continue;
        s.call(s.body, FirstOf(share + 1, threads, s.units) - count);
        ++done;
        count = left.load(std::memory_order_relaxed);
      }
    }
    if (done > 0) s.done.fetch_add(done, std::memory_order_acq_rel);
  }

  // Spins, and after some microseconds gives the core away: whoever is waited for may need it.
  static void Wait(int& idle) {
    if (++idle > 2048) {
      std::this_thread::yield();
    } else {
      Relax();
    }
  }

  static void Help(Shared& s, int64_t thread) {
    int64_t seen = 0;
    for (int idle = 0;;) {
      const int64_t phase = s.phase.load(std::memory_order_acquire);
      if (phase == kClosed) return;
      if (phase == seen) {
        Wait(idle);
        continue;
      }
      seen = phase;
      idle = 0;
      Work(s, thread);
    }
  }

  std::shared_ptr<Shared> shared_;
  int64_t threads_ = 1;
};

}  // namespace fairlane
