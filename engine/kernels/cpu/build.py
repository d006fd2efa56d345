"""Builds the native kernels against the installed jaxlib's headers: `python -m engine.kernels.cpu.build [--force]`.

The file's name carries the jaxlib version (a library made for newer headers is refused by an older jaxlib) and a digest
of the sources, so that what is found is what would be built.
"""

import argparse
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

SOURCE_DIR = Path(__file__).parent / "csrc"

COMMON_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")

INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {
    "Avx512Kernels": (
        "-DFL_ISA=avx512",
        *("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16", "-mavx512vnni"),
        "-mprefer-vector-width=512",
    ),
    "Avx2Kernels": ("-DFL_ISA=avx2", "-mavx2", "-mfma", "-mf16c"),
    "PortableKernels": ("-DFL_ISA=portable",),
}


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """Why there is no library, in one sentence."""

    reason: str


def library_name() -> str:
    """`fairlane_cpu-jaxlib<version>-<digest of the sources and flags>.so`."""
    digest = hashlib.sha256(repr((COMMON_FLAGS, INSTRUCTION_SETS, platform.machine())).encode())
    for path in sorted(SOURCE_DIR.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return f"fairlane_cpu-jaxlib{version('jaxlib')}-{digest.hexdigest()[:12]}.so"


def cache_dir() -> Path:
    """Where a library goes when the package's own folder is not writable; as for compiled programs."""
    configured = os.environ.get("FAIRLANE_CACHE_DIR")
    return Path(configured) if configured else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlane"


def find_library() -> Path | None:
    """The library that fits this jaxlib and these sources, if it has been built."""
    candidates = (SOURCE_DIR.parent / library_name(), cache_dir() / library_name())
    return next((path for path in candidates if path.is_file()), None)


def find_compiler() -> str | None:
    """What builds the library; None where nothing on this machine does."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


def build(target_dir: Path | None = None) -> Path | BuildFailed:
    """Compile and link in a few seconds; the finished file appears at once or not at all."""
    compiler = find_compiler()
    include_dir = _jaxlib_include_dir()
    if compiler is None:
        return BuildFailed("no C++ compiler (g++ or clang++) was found")
    if include_dir is None:
        return BuildFailed("jaxlib, whose headers the kernels need, is not installed")
    target = (target_dir or _writable_dir()) / library_name()
    try:
        with tempfile.TemporaryDirectory(prefix="fairlane-build-") as scratch:
            _compile(compiler, include_dir, Path(scratch), target)
    except subprocess.CalledProcessError as error:
        return BuildFailed(f"{compiler} failed: {error.stderr.strip().splitlines()[0] if error.stderr.strip() else error}")
    except OSError as error:
        return BuildFailed(f"the library could not be written: {error}")
    return target


def _compile(compiler: str, include_dir: Path, scratch: Path, target: Path) -> None:
    sets = INSTRUCTION_SETS if platform.machine() in ("x86_64", "AMD64") else {"PortableKernels": INSTRUCTION_SETS["PortableKernels"]}
    jobs = [("isa.cc", scratch / f"{name}.o", (f"-DFL_KERNELS={name}", *flags)) for name, flags in sets.items()]
    jobs.append(("ffi.cc", scratch / "ffi.o", ("-isystem", str(include_dir))))

    def compile_one(job: tuple[str, Path, tuple[str, ...]]) -> None:
        source, out, flags = job
        _run(compiler, *COMMON_FLAGS, *flags, "-c", str(SOURCE_DIR / source), "-o", str(out))

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        list(pool.map(compile_one, jobs))
    linked = scratch / target.name
    _run(compiler, "-shared", *(str(out) for _, out, _ in jobs), "-o", str(linked))
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copyfile(linked, partial)
    partial.replace(target)
    for older in target.parent.glob(f"{target.name.rsplit('-', 1)[0]}-*.so"):
        if older != target:
            older.unlink(missing_ok=True)  # whoever runs it has it mapped


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _jaxlib_include_dir() -> Path | None:
    """`jax.ffi.include_dir()` without importing jax, which an installer has no need of."""
    spec = importlib.util.find_spec("jaxlib")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    return Path(roots[0]) / "include" if roots else None


def _writable_dir() -> Path:
    package_dir = SOURCE_DIR.parent
    return package_dir if os.access(package_dir, os.W_OK) else cache_dir()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.kernels.cpu.build", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--force", action="store_true", help="build anew where there is a library of these sources")
    found = None if parser.parse_args(arguments).force else find_library()
    result = found or build()
    sys.stdout.write(f"{result.reason if isinstance(result, BuildFailed) else result}\n")
    return 1 if isinstance(result, BuildFailed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
