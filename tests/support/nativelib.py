"""Compiles the small C libraries that stand in for a vendor's where its hardware is missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "native"


def compile_library(name: str, folder: Path, *options: str) -> Path:
    """Compile native/NAME.c to a shared library; skip where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    target = folder / f"lib{name}_standin.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", *options]
    subprocess.run([*command, "-o", target, SOURCES / f"{name}.c", "-lm"], check=True)
    return target
