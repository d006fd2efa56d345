"""Files of the project that are read at run time: in a clone they lie beside the packages, in a wheel inside this one (setup.py)."""

from pathlib import Path

PACKED = Path(__file__).parent / "packed"
PROJECT = Path(__file__).parents[1]


def project_path(name: str) -> Path:
    """Where a file or folder of the project is; `setup.py` lists those that a wheel has."""
    return (PACKED if PACKED.is_dir() else PROJECT) / name
