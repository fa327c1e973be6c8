"""Supported versions of Python and torch → an environment for each, and whether the package works in it.

For every Python that pyproject.toml names and that is found on the path: one environment with the newest versions of
all dependencies, and one with the lowest that pyproject.toml allows. Each gets the package, not in editable form, and
runs ``scripts/smoke.py``, or with ``--suite`` all tests. What is not there is skipped, by name.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BARE = "--import-mode=importlib --disable-socket --allow-unix-socket"  # checks of shapes need a newer jaxtyping
EXTRAS = ("serve", "train")


@dataclass(frozen=True)
class Outcome:
    """What came of one combination."""

    name: str
    state: str  # "passed", "failed" or "skipped"
    remark: str = ""


def pythons(lines: Sequence[str]) -> list[str]:
    """The versions that the package says it supports."""
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in lines)
    return [match[1] for match in found if match]


def lowest(requirements: Sequence[str]) -> list[str]:
    """``["torch>=2.6"]`` → ``["torch==2.6"]``."""
    pins = []
    for requirement in requirements:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)>=(\d+(?:\.\d+)*)", requirement)
        if not match:
            raise SystemExit(f"{requirement!r}: expected name>=version, so that the lowest version is known")
        pins.append(f"{match[1]}=={match[2]}")
    return pins


def find_python(version: str) -> str | None:
    """An interpreter of that version that runs: this one, one on the path, or one of pyenv's, switched on or not."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [sys._base_executable, shutil.which(f"python{version}")]  # type: ignore[attr-defined]
    places += sorted(map(str, (root / "versions").glob(f"{version}.*/bin/python")), reverse=True)
    question = "import sys, venv; print('.'.join(map(str, sys.version_info[:2])))"
    for place in filter(None, places):
        answer = subprocess.run([place, "-c", question], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return str(place)
    return None


def run(command: Sequence[str | Path], log: Path, cwd: Path = ROOT) -> bool:
    """Run, with all that it says in a file."""
    with log.open("ab") as file:
        file.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        file.flush()
        return subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=cwd, check=False).returncode == 0


def last_words(log: Path, most: int = 600) -> str:
    """What a command said at the end, at most so many characters of it."""
    return " / ".join(line for line in log.read_text(errors="replace").splitlines() if line.strip())[-most:]


def check(name: str, python: str, pins: Sequence[Sequence[str]], folder: Path, *, suite: bool, keep: bool) -> Outcome:
    """Build an environment, try the package in it, and remove it (one takes about 6 GB) unless it is to be kept."""
    environment = folder / name
    try:
        return tried(name, python, pins, folder, suite=suite)
    finally:
        if not keep:
            shutil.rmtree(environment, ignore_errors=True)


def tried(name: str, python: str, pins: Sequence[Sequence[str]], folder: Path, *, suite: bool) -> Outcome:
    """What came of it.

    Args:
        name: of the combination.
        python: the interpreter.
        pins: lists of versions to ask for; the first that has wheels for this interpreter is taken.
        folder: for the environment and its log.
        suite: all tests instead of the smoke test.
    """
    environment, log = folder / name, folder / f"{name}.log"
    log.unlink(missing_ok=True)
    binary = environment / "bin" / "python"
    if not binary.is_file() and not run([python, "-m", "venv", environment], log):
        return Outcome(name, "skipped", f"no environment can be made ({last_words(log, 200)})")
    install = [binary, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    tools = [*dependencies("all"), *group("test")] if suite else []
    for number, wanted in enumerate(pins):
        # the package itself is built from the tree, so it is installed apart from what must be wheels
        needed = [*dependencies(), *tools, *wanted]
        if run([*install, *([] if wanted else ["--upgrade"]), *needed], log):
            remark = "" if number == 0 else f"not all at their lowest, which have no wheels for it: {', '.join(wanted)}"
            break
    else:
        return Outcome(name, "skipped", f"cannot be installed ({last_words(log, 200)})")
    if not run([*install[:-2], "--no-deps", "--force-reinstall", ROOT], log):
        return Outcome(name, "failed", f"the package cannot be built; {log}: {last_words(log)}")
    test = (
        [binary, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"addopts={BARE}", "-o", "filterwarnings="]
        if suite
        else [binary, "-P", ROOT / "scripts/smoke.py"]
    )
    if not run(test, log, cwd=ROOT if suite else folder):
        return Outcome(name, "failed", f"{log}: {last_words(log)}")
    return Outcome(name, "passed", "; ".join(filter(None, [log.read_text(errors="replace").splitlines()[-1], remark])))


def classifiers() -> list[str]:
    """What the package says of itself."""
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"])


def dependencies(*extras: str) -> list[str]:
    """Requirements of the package and of its extras; EXTRAS where none is named."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional: dict[str, list[str]] = table["optional-dependencies"]
    if "all" in extras:
        extras = tuple(name for name in optional if name != "all")
    return [*table["dependencies"], *(line for extra in extras or EXTRAS for line in optional[extra])]


def group(name: str) -> list[str]:
    """Requirements of a dependency group."""
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"][name])


def combinations(only: str | None, folder: Path, *, suite: bool, keep: bool) -> Iterator[Outcome]:
    """Every Python with the newest and the lowest versions."""
    needed = dependencies()
    torch_alone = [pin for pin in lowest(needed) if pin.startswith("torch")]
    for version in pythons(classifiers()):
        python = find_python(version)
        for name, pins in (("newest", [[]]), ("lowest", [lowest(needed), torch_alone])):
            combination = f"python{version}-{name}"
            if only is not None and only not in combination:
                continue
            if python is None:
                yield Outcome(combination, "skipped", f"no python{version} is installed that runs")
            else:
                yield check(combination, python, pins, folder, suite=suite, keep=keep)


def main() -> int:
    """Print a line for each combination; 1 if one failed or none could be tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "versions", help="for environments and logs")
    parser.add_argument("--only", help="combinations with this in their name, such as 3.11-lowest")
    parser.add_argument("--suite", action="store_true", help="run all tests instead of the smoke test")
    parser.add_argument("--keep", action="store_true", help="keep the environments (about 6 GB each) for another run")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for outcome in combinations(args.only, args.folder.resolve(), suite=args.suite, keep=args.keep):
        print(f"{outcome.state:8}{outcome.name:20}{outcome.remark}", flush=True)
        outcomes.append(outcome)
    passed, failed = (sum(o.state == state for o in outcomes) for state in ("passed", "failed"))
    print(f"{passed} passed, {failed} failed, {len(outcomes) - passed - failed} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
