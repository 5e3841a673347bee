"""The kernels' own test program, built with the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import shortcaps.kernels

KERNELS = Path(shortcaps.kernels.__file__).parent
COMPILER = os.environ.get("CXX", "c++")
FLAGS = [
    "-std=c++17",
    "-Werror=switch",
    "-fopenmp",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    f"-I{KERNELS}",
]
# Without optimisation, and for the plainest instruction set only, it is a matter of seconds. `make sanitize` builds the
# program as it is shipped, for all of them, which takes minutes.
VARIANTS: dict[str, list[str]] = {"generic": ["-O0"]}
if os.environ.get("SHORTCAPS_SANITIZE_ALL"):
    assert platform.machine() == "x86_64", "the other instruction sets are those of x86_64"
    FLAGS += ["-DSHORTCAPS_X86", "-fno-math-errno", "-ffp-contract=fast"]
    VARIANTS = {
        "generic": ["-O2"],
        "avx2": ["-O2", "-mavx2", "-mfma"],
        "avx512": ["-O2", "-mavx512f", "-mavx512dq", "-mfma"],
    }


def compile_with_sanitizers(*arguments: str | Path) -> None:
    result = subprocess.run([COMPILER, *FLAGS, *map(str, arguments)], capture_output=True, text=True)
    if "cannot find -l" in result.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert result.returncode == 0, result.stderr


HAS_COMPILER = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C++ compiler")


@HAS_COMPILER
def test_a_kind_without_a_kernel_does_not_compile(tmp_path: Path) -> None:
    for file in KERNELS.glob("*.h"):
        shutil.copy(file, tmp_path)
    source = shutil.copy(KERNELS / "routing.cpp", tmp_path)
    command = [COMPILER, *FLAGS, "-DVARIANT=generic", "-fsyntax-only", source]
    assert subprocess.run(command, capture_output=True).returncode == 0
    header = tmp_path / "routing.h"
    declared = header.read_text()
    header.write_text(declared.replace("ROUTING_KINDS }", "FIFTH, ROUTING_KINDS }"))
    assert header.read_text() != declared
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode != 0
    assert "FIFTH" in result.stderr
    assert "not handled in switch" in result.stderr


@pytest.mark.slow
@HAS_COMPILER
def test_the_kernels_run_clean_under_sanitizers(tmp_path: Path) -> None:
    objects = []
    for variant, flags in VARIANTS.items():
        for source in ("routing", "local"):
            objects.append(tmp_path / f"{variant}_{source}.o")
            compile_with_sanitizers(*flags, f"-DVARIANT={variant}", "-c", KERNELS / f"{source}.cpp", "-o", objects[-1])
    program = tmp_path / "program"
    compile_with_sanitizers(KERNELS / "dispatch.cpp", Path(__file__).with_name("program.cpp"), *objects, "-o", program)
    result = subprocess.run([program], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "checks passed" in result.stdout
