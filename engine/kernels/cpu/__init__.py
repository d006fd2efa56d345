"""Native kernels for CPUs: C++17 in `csrc`, called through jax.ffi; `build` makes the library, `library` loads it."""
