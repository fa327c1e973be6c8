"""What is published: a wheel that works where nothing of the repository is, and a source archive without surprises."""

import json
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from transformatcher.inference.matcher import Matcher
from transformatcher.models.fused.native import FILES

pytest.importorskip("hatchling", reason="hatchling is not installed")

ROOT = Path(__file__).parents[1]
WEIGHTS = "transformatcher/weights/model.safetensors"
FUSED = "transformatcher/models/fused"
LARGE = 5_000_000  # bytes: more than anything but the weights has
PRIVATE = re.compile(
    r"(^|/)(\.git|\.env|\.venv|venv|out|runs|dist|__pycache__|\.hypothesis|\.coverage|[^/]*_cache|id_[a-z0-9]+)(/|$)"
    r"|\.(pyc|pem|key|p12|log|partial|swp|orig|rej)$"
)
POINTS = [[168, 115], [262, 241]]


def built(folder: Path, kind: str, root: Path = ROOT) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    (path,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"), "wheel")


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    names = {Path(name).parts[0] for name in sizes}
    assert names == {"transformatcher", next(name for name in names if name.endswith(".dist-info"))}
    assert sizes[WEIGHTS] > 40_000_000
    needed = (
        "weights/config.json",
        "weights/calibration.json",
        "examples/cat_a.jpg",
        "web/studio/static/index.html",
        "web/studio/static/app.js",
        "web/studio/static/style.css",
        "evaluation/analysis/templates/page.html.jinja",
        "evaluation/analysis/templates/blocks.html.jinja",
        "py.typed",
    )
    assert {f"transformatcher/{name}" for name in needed} <= sizes.keys()
    assert [name for name, size in sizes.items() if size > LARGE] == [WEIGHTS]
    assert [name for name in sizes if PRIVATE.search(name)] == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_library_in_c_is_for_any_python_of_this_system(wheel: Path):
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if "libpasses" in name] == [f"{FUSED}/{FILES[sys.platform]}"]


def test_a_wheel_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    wheel = built(tmp_path, "wheel")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "libpasses" in name]


def test_the_source_archive_makes_the_same_wheel(wheel: Path, tmp_path: Path):
    with tarfile.open(built(tmp_path, "sdist")) as archive:
        members = archive.getmembers()
        archive.extractall(tmp_path / "source", filter="data")
    (root,) = (tmp_path / "source").iterdir()
    names = {Path(member.name).relative_to(root.name).as_posix(): member.size for member in members}
    assert {"pyproject.toml", "LICENSE", "README.md", "tests/conftest.py"} <= names.keys()
    assert [name for name, size in names.items() if size > LARGE] == [f"src/{WEIGHTS}"]
    assert [name for name in names if PRIVATE.search(name)] == []
    again = built(tmp_path / "again", "wheel", root)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as two:
        assert sorted(one.namelist()) == sorted(two.namelist())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it; its dependencies are borrowed from this one, which saves a download."""
    pytest.importorskip("pip", reason="pip is not installed")
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*command, "--disable-pip-version-check", str(wheel)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # a folder named in a .pth file is searched, but its own .pth files are not read: an editable install stays hidden
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder


def run(folder: Path, *command: str) -> str:
    """Somewhere else, with nothing that leads back here."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    result = subprocess.run(
        [str(folder / "bin" / command[0]), *command[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def test_the_installed_command_matches_photos(installed: Path):
    place = Path(
        run(installed, "python", "-c", "import transformatcher; print(transformatcher.__file__)").strip()
    ).parent
    assert place.is_relative_to(installed)
    photos = [place / "examples" / name for name in ("cat_a.jpg", "cat_b.jpg")]
    text = ";".join(f"{x},{y}" for x, y in POINTS)
    printed = json.loads(run(installed, "transformatcher", "match", *map(str, photos), "--keypoints", text, "--json"))
    matches = Matcher.from_pretrained().match(*photos, POINTS)
    np.testing.assert_allclose(printed["keypoints1"], matches.keypoints1, atol=0.1)
    assert printed["calibrated"]
    assert printed["is_match"] == [True, True]
