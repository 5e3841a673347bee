"""Builds the native routing kernels as an optional part of the installation: without a C++ compiler the package still
installs, and runs on PyTorch alone. Everything else about the package is in pyproject.toml."""

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KERNELS = Path("src/shortcaps/kernels")
BUILT = KERNELS / "_native.so"
SOURCES = ["routing.cpp", "local.cpp"]
# A kind of routing without a kernel does not compile (-Werror=switch).
FLAGS = ["-O3", "-funroll-loops", "-std=c++17", "-fPIC", "-fno-math-errno", "-ffp-contract=fast", "-Werror=switch"]
# One copy of the kernels for each instruction set; which of them runs is decided on the user's machine.
VARIANTS = {"generic": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    FLAGS.append("-DSHORTCAPS_X86")
    VARIANTS["avx2"] = ["-mavx2", "-mfma"]
    VARIANTS["avx512"] = ["-mavx512f", "-mavx512dq", "-mfma", "-mprefer-vector-width=512"]


def source_digest() -> str:
    """As in `kernels/library.py`: what the library is built from."""
    files = sorted(file for file in KERNELS.iterdir() if file.suffix in (".h", ".cpp"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def is_built(library: Path) -> bool:
    """Whether a library was built from these very sources, which it names itself, and not before this file last changed."""
    try:
        is_recent = library.stat().st_mtime >= Path(__file__).stat().st_mtime
        return is_recent and source_digest().encode() in library.read_bytes()
    except OSError:
        return False


class BuildNative(build_ext):
    """Compiles a plain shared library with a C interface: no Python and no PyTorch headers are needed."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        if sys.platform == "win32":
            raise CompileError("the native kernels are written for GCC and Clang")
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        # An editable installation leaves its library beside the sources: the next one, with more extras, need not compile again.
        if is_built(BUILT) and not self.force:
            if not (target.exists() and target.samefile(BUILT)):
                shutil.copy2(BUILT, target)
            return
        compiler = os.environ.get("CXX", "c++").split()
        openmp = ["-fopenmp"] if self._compiles([*compiler, "-fopenmp"]) else []
        scratch = Path(self.build_temp)
        scratch.mkdir(parents=True, exist_ok=True)
        jobs = [("dispatch", KERNELS / "dispatch.cpp", [f'-DSHORTCAPS_SOURCE="{source_digest()}"'])]
        for variant, flags in VARIANTS.items():
            jobs += [(f"{variant}_{s}", KERNELS / s, [f"-DVARIANT={variant}", *flags]) for s in SOURCES]
        objects = [str(scratch / f"{name}.o") for name, _, _ in jobs]

        def compile_one(job: tuple[str, Path, list[str]], target: str) -> None:
            _, source, flags = job
            self.spawn([*compiler, *FLAGS, *openmp, *flags, "-c", str(source), "-o", target])

        with ThreadPoolExecutor(os.cpu_count()) as compilers:
            list(compilers.map(compile_one, jobs, objects))
        # Under a temporary name first: a library that is in use must not change under its user.
        fresh = target.with_suffix(".new")
        self.spawn([*compiler, "-shared", *openmp, *objects, "-o", str(fresh)])
        os.replace(fresh, target)

    def _compiles(self, command: list[str]) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "empty.cpp")
            source.write_text("int nothing() { return 0; }\n")
            try:
                self.spawn([*command, "-shared", "-fPIC", str(source), "-o", str(Path(folder, "empty.so"))])
            except Exception:  # each compiler fails in its own way
                return False
            return True


# A user without a compiler, or with one we do not know, gets the package without kernels. Developers want to know that theirs do not compile.
IS_OPTIONAL = os.environ.get("SHORTCAPS_REQUIRE_NATIVE", "0") in ("", "0")

setup(
    ext_modules=[
        Extension("shortcaps.kernels._native", sources=[str(KERNELS / s) for s in SOURCES], optional=IS_OPTIONAL)
    ],
    cmdclass={"build_ext": BuildNative},
)
