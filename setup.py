"""Adds the native CPU kernels and the files of `appliance.packed` to the package's build; everything else is in pyproject.toml.

A build without a compiler, or with one that fails, is a build without native kernels: it says so and goes on.
"""

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PACKAGE = Path("engine/kernels/cpu")

sys.path.insert(0, str(ROOT))  # a build backend runs this file without the project on its path

from engine.kernels.cpu.build import BuildFailed, build, find_library  # noqa: E402


class BuildNative(build_ext):
    """Compiles with `engine.kernels.cpu.build`, into the package when it is installed as editable."""

    def run(self) -> None:
        in_place = bool(self.inplace or self.editable_mode)
        built = (find_library() if in_place else None) or build(ROOT / PACKAGE if in_place else Path(self.build_lib) / PACKAGE)
        if isinstance(built, BuildFailed):
            self.warn(f"no native CPU kernels, XLA's run instead: {built.reason}")

    def get_outputs(self) -> list[str]:
        return [] if self.inplace or self.editable_mode else [str(path) for path in (Path(self.build_lib) / PACKAGE).glob("*.so")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildPacked(build_py):
    """Puts what lies beside the packages and is read at run time into a wheel: `appliance/packed.py` finds it."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for path in self._packed():
                target = Path(self.build_lib) / "appliance" / "packed" / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / path, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        packed = [] if self.editable_mode else [str(Path(self.build_lib) / "appliance" / "packed" / path) for path in self._packed()]
        return [*super().get_outputs(include_bytecode), *packed]

    def _packed(self) -> list[Path]:
        patterns = ("dashboards/json/*.json", "alerts/recording.yaml", "migrations/*.py", "migrations/*.mako", "migrations/versions/*.py")
        return sorted(path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern))


setup(
    ext_modules=[Extension("engine.kernels.cpu.fairlane_cpu", sources=[], optional=True)],
    cmdclass={"build_ext": BuildNative, "build_py": BuildPacked},
    package_data={
        "engine.kernels.cpu": ["csrc/*"],
        "engine.simulation": ["*.json"],
        "appliance.ui": ["templates/**/*.html", "static/**/*"],
    },
)
