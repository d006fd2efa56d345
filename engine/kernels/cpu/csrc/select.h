// Which instruction sets this library holds and this machine can run. Best first: 0 avx512, 1 avx2, 2 portable.
#pragma once

#include "kernels.h"

namespace fairlane {

inline const Kernels* KernelsAt(int level) {
#if defined(__x86_64__)
  if (level == 0)
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
               ? Avx512Kernels()
               : nullptr;
  if (level == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") ? Avx2Kernels() : nullptr;
#endif
  return level == 2 ? PortableKernels() : nullptr;
}

}  // namespace fairlane
