// A step that is cut short: whoever is waited for wants the machine. Decode rows go on to their end, for they take little; what the
// step has done so far for prompts is done again later. One device runs one step after another, so there is one cut a process.
#pragma once

#include <atomic>
#include <cstdint>

namespace fairlane {

class Cut {
 public:
  // From any thread, at any time: before its next layer, the step that runs, or the next one, leaves out all rows but its decodes.
  void Want() { wanted_.store(true, std::memory_order_relaxed); }
  // Asked before each layer: whether it is to be made now.
  bool Due() const { return wanted_.load(std::memory_order_relaxed) && !made_.load(std::memory_order_relaxed); }
  // So many rows, the step's first ones, go on.
  void Make(int64_t kept_rows) {
    kept_rows_.store(kept_rows, std::memory_order_relaxed);
    made_.store(true, std::memory_order_relaxed);
  }
  // Of a product behind the layers: whether the row still means something.
  bool Keeps(int64_t row) const { return !made_.load(std::memory_order_relaxed) || row < kept_rows_.load(std::memory_order_relaxed); }
  // After the step's end: whether it was cut, and from now on nothing is wanted.
  bool Settle() {
    wanted_.store(false, std::memory_order_relaxed);
    return made_.exchange(false, std::memory_order_acq_rel);
  }

 private:
  std::atomic<bool> wanted_{false}, made_{false};
  std::atomic<int64_t> kept_rows_{0};
};

inline Cut& TheCut() {
  static Cut cut;
  return cut;
}

}  // namespace fairlane
