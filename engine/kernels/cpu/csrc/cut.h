// A step that is cut short: whoever is waited for wants the machine, and what the step has done so far is done again later.
// One device runs one step after another, so there is one cut a process.
#pragma once

#include <atomic>

namespace fairlane {

class Cut {
 public:
  // From any thread, at any time: the step that runs, or the next one, stops before its next layer.
  void Want() { wanted_.store(true, std::memory_order_relaxed); }
  // Asked before each layer.
  bool Due() {
    if (!wanted_.load(std::memory_order_relaxed)) return false;
    made_.store(true, std::memory_order_relaxed);
    return true;
  }
  // The layers of this step were left: nobody looks at its logits.
  bool made() const { return made_.load(std::memory_order_relaxed); }
  // After the step's end: whether it was cut, and from now on nothing is wanted.
  bool Settle() {
    wanted_.store(false, std::memory_order_relaxed);
    return made_.exchange(false, std::memory_order_acq_rel);
  }

 private:
  std::atomic<bool> wanted_{false}, made_{false};
};

inline Cut& TheCut() {
  static Cut cut;
  return cut;
}

}  // namespace fairlane
