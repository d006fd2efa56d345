// Compiled once per instruction set: FL_ISA names it, FL_KERNELS is the function that hands out its table.
#include "attention.h"
#include "products.h"

namespace fairlane {

const Kernels* FL_KERNELS() {
  using namespace FL_ISA;
#define FL_STRING_OF(x) #x
#define FL_STRING(x) FL_STRING_OF(x)
  static const Kernels kernels = {FL_STRING(FL_ISA), WriteKv,   Attend,    Merge,    Finish, Quantize, Multiply,
                                  StoreTile,          SiluGate,  RmsNorm,   Rotate};
  return &kernels;
}

}  // namespace fairlane
