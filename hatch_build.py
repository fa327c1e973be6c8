"""Build hook: the C files of models/fused/ → a shared library in the wheel, where there is a C compiler."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/transformatcher/models/fused")
SOURCES = ("native.c", "native_conv.c")
FILES = {"linux": "libpasses.so", "darwin": "libpasses.dylib", "win32": "libpasses.dll"}  # as in native.py
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra"]
# Name of an instruction set → floats in a vector, how to ask the CPU for it, and the compiler's flags.
GENERIC = {"generic": (4, "1", [])}  # SSE2 or NEON, which every CPU of its kind has
X86 = GENERIC | {
    "avx2": (8, '__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")', ["-mavx2", "-mfma"]),
    "avx512": (16, '__builtin_cpu_supports("avx512f")', ["-mavx512f", "-mfma", "-mprefer-vector-width=512"]),
}


class NativePasses(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the library to wheels; editable installs load it from the source folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Compile before the files of a wheel are gathered."""
        library = Path(self.root) / FOLDER / FILES.get(sys.platform, "")
        if sys.platform not in FILES or not compile_library(Path(self.root) / FOLDER, library):
            self.app.display_warning("no C compiler that can build the library; torch will compute what it does")
            return
        build_data["artifacts"].append(f"/{FOLDER.as_posix()}/{library.name}")
        build_data["pure_python"] = False
        name = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{name}"  # loaded by ctypes, so it depends on no version of Python


def compile_library(folder: Path, library: Path, extra: tuple[str, ...] = ()) -> bool:
    """Compile the library with the first compiler that can; whether there is one.

    Args:
        folder: with the C files, each compiled once for each instruction set.
        library: is replaced as a whole, so a process that has loaded it keeps the old one.
        extra: flags for compiling and linking.
    """
    isas = X86 if platform.machine().lower() in {"x86_64", "amd64", "i686"} else GENERIC
    named = os.environ.get("CC")
    for compiler in [named] if named else ["cc", "gcc", "clang"]:
        if shutil.which(compiler) is None:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            objects = []
            for (isa, (lanes, supported, flags)), source in product(isas.items(), SOURCES):
                objects.append(str(Path(temporary) / f"{isa}_{source}.o"))
                defines = [f"-DLANES={lanes}", f"-DISA={isa}", f"-DSUPPORTED={supported}"]
                position = [] if sys.platform == "win32" else ["-fPIC"]
                files = ["-c", str(folder / source), "-o", objects[-1]]
                command = [compiler, *FLAGS, *flags, *position, *defines, *extra, *files]
                if subprocess.run(command, capture_output=True, check=False).returncode:
                    break
            else:
                new = Path(temporary) / library.name
                math = [] if sys.platform == "win32" else ["-lm"]
                linked = subprocess.run(
                    [compiler, "-shared", *extra, *objects, *math, "-o", str(new)], capture_output=True, check=False
                )
                if linked.returncode == 0:
                    library.unlink(missing_ok=True)
                    shutil.copy2(new, library)
                    return True
    return False
