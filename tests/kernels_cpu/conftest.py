"""Every test here runs on each instruction set of this machine, and is skipped where the kernels can not be built."""

import os

import pytest

from engine.kernels.cpu.library import NativeLibrary, native_library

ISAS = ("avx512", "avx2", "portable")


@pytest.fixture(scope="session")
def library() -> NativeLibrary:
    found = native_library()
    if isinstance(found, NativeLibrary):
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"the native kernels must be there in CI: {found.reason}")
    pytest.skip(found.reason)


@pytest.fixture(scope="session", params=ISAS)
def isa(request: pytest.FixtureRequest, library: NativeLibrary) -> str:
    if request.param not in library.isa_names.values():
        pytest.skip(f"this machine has no {request.param}")
    return request.param
