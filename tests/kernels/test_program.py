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
FLAGS = ["-std=c++17", "-fopenmp", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{KERNELS}"]
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


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C++ compiler")
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
