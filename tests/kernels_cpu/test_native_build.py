"""Building, finding and loading the library, and what happens where that is not possible."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from engine.kernels.cpu.build import BuildFailed, build, find_library, library_name
from engine.kernels.cpu.library import NativeLibrary

REPORT = """
from engine.kernels.cpu.library import native_library
found = native_library()
print(getattr(found, "reason", "") or ",".join(found.isa_names.values()))
"""

DECODE_IN_A_FORK = """
import os, sys
import jax.numpy as jnp
from engine.kernels.attention import AttentionShape
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.build import find_library

pid = os.fork()  # before JAX has threads, as a supervisor would
from engine.kernels.cpu.library import native_library
backend, shape = CpuNativeAttention(native_library()), AttentionShape(2, 1, 64, 16, 0.125)
out = backend.decode(shape, backend.allocate(shape, 2, "float32"), jnp.ones((40, 2, 64)), jnp.zeros((40, 1), jnp.int32), jnp.full(40, 16))
assert not out.any()
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print("both answered")
"""


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_name_carries_jaxlibs_version_and_the_sources(library: NativeLibrary) -> None:
    assert f"-jaxlib{version('jaxlib')}-" in library_name()
    assert Path(library.path).name == library_name()
    assert find_library() == Path(library.path)


def test_without_a_compiler_there_is_a_reason_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build(tmp_path) == BuildFailed("no C++ compiler (g++ or clang++) was found")


def test_what_the_sanitizers_drive_compiles_against_the_sources() -> None:
    # Building and running it (tools/sanitize_kernels.sh) takes a minute and is CI's; that it still fits the sources is known at once.
    driver = Path(__file__).with_name("sanitize.cc")
    command = [os.environ.get("CXX") or "g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(driver)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_compiler_that_fails_is_a_reason_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert build(tmp_path / "out") == BuildFailed(f"{compiler} failed: no such header")
    assert not (tmp_path / "out").exists()


def test_the_environment_picks_an_instruction_set_or_none(library: NativeLibrary) -> None:
    assert run_python(REPORT, FAIRLANE_CPU_ISA="portable") == "portable"
    assert "does not run on this machine" in run_python(REPORT, FAIRLANE_CPU_ISA="sve9")
    assert "turned off" in run_python(REPORT, FAIRLANE_CPU_NATIVE="off")


def test_forked_processes_both_run_the_kernels(library: NativeLibrary) -> None:
    assert run_python(DECODE_IN_A_FORK) == "both answered"


def test_a_replica_without_native_kernels_runs_on_xla_and_knows_why(library: NativeLibrary) -> None:
    code = "from engine.execution.backends import available_backends as a; print([b.name for b in a().backends], a().native_missing)"
    assert run_python(code, FAIRLANE_CPU_NATIVE="off") == "['xla'] turned off by FAIRLANE_CPU_NATIVE"
    assert run_python(code) == "['cpu-native', 'xla']"


def test_a_build_replaces_the_library_of_older_sources(library: NativeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/true")
    stale, other = tmp_path / f"fairlane_cpu-jaxlib{version('jaxlib')}-0123456789ab.so", tmp_path / "fairlane_cpu-jaxlib0.1-0123456789ab.so"
    stale.touch()
    other.touch()
    assert isinstance(build(tmp_path), BuildFailed)  # this compiler writes nothing
    assert stale.exists()
    linker = tmp_path / "compiler"
    linker.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n')
    linker.chmod(0o755)
    monkeypatch.setenv("CXX", str(linker))
    assert build(tmp_path) == tmp_path / library_name()
    assert sorted(path.name for path in tmp_path.glob("*.so")) == sorted([library_name(), other.name])
