"""Annotation project → the files of another tool, by the name of their format."""

import importlib.util
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from transformatcher import __version__
from transformatcher.annotation.formats.coco import write_coco
from transformatcher.annotation.formats.deeplabcut import write_deeplabcut
from transformatcher.annotation.formats.label_studio import write_label_studio
from transformatcher.annotation.formats.objects import Contents, Predictions, collect
from transformatcher.annotation.formats.sleap import write_sleap
from transformatcher.annotation.formats.yolo_pose import write_yolo_pose
from transformatcher.annotation.project import Project
from transformatcher.errors import InputError
from transformatcher.files import UNFINISHED, atomic_write, make_folder, write_text
from transformatcher.inference.calibration import MATCH_THRESHOLD

MARKER = "transformatcher.json"  # in a folder that an export has made


@dataclass(frozen=True)
class Format:
    """A format that projects are exported to."""

    name: str  # as options and the page's server take it
    title: str  # as people know it
    suffix: str  # of the file; empty for a folder
    write: Callable[[Contents, Path], list[str]]  # returns what gets lost, in sentences
    links: bool = False  # its folder holds links to the photos
    package: str | None = None  # that has to be installed
    install: str = ""

    @property
    def several_files(self) -> bool:
        """Whether it is a folder."""
        return not self.suffix

    @property
    def available(self) -> bool:
        """Whether it can be written here."""
        return not self.why

    @property
    def why(self) -> str:
        """Why it cannot be written here; empty if it can."""
        if self.package is None or importlib.util.find_spec(self.package) is not None:
            return ""
        return f"needs the package {self.package.replace('_', '-')}: {self.install}"


FORMATS = {
    form.name: form
    for form in (
        Format("coco", "COCO keypoints", ".json", write_coco),
        Format("yolo", "Ultralytics YOLO-pose", "", write_yolo_pose, links=True),
        Format("label-studio", "Label Studio", "", write_label_studio),
        Format("deeplabcut", "DeepLabCut", "", write_deeplabcut, links=True),
        Format(
            "sleap", "SLEAP", ".slp", write_sleap,
            package="sleap_io", install="pip install 'transformatcher[sleap]'",
        ),
    )
}  # fmt: skip


@dataclass
class ExportSummary:
    """What was exported."""

    format: str
    path: str
    images: int
    objects: int
    keypoints: int  # that are there: marked or predicted
    predicted: int  # of them
    notes: list[str] = field(default_factory=list)  # what was left out or gets lost, in sentences


def export_project(
    project: Project,
    format: str,
    out: Path,
    *,
    predictions: Predictions = "omit",
    threshold: float = MATCH_THRESHOLD,
    overwrite: bool = False,
) -> ExportSummary:
    """Write a project as a file or a folder of another tool: all of it, or nothing if there is an error.

    A file is replaced. A folder has to be empty or to come from an earlier export, unless ``overwrite``; other files in
    it are kept.

    Args:
        project: is read.
        format: one of :data:`FORMATS`.
        out: the file, or the folder.
        predictions: "omit": what a person marked or imported; "include": predictions of the other keypoints, too;
            "only": predictions alone.
        threshold: predictions of less confidence are left out.
        overwrite: write into a folder with other content.

    Example:
        >>> export_project(project, "coco", Path("keypoints.json"))
    """
    form = _available(format)
    if form.several_files:
        _check_folder(project, form, out, overwrite=overwrite)
    elif out.is_dir():
        raise InputError(f"{out}: a folder; {form.title} is a file, such as {out / f'keypoints{form.suffix}'}")
    elif out.resolve() == project.file.resolve():
        raise InputError(f"{out}: the project itself, which would be lost; choose another file")
    elif out.suffix.lower() != form.suffix:  # so neither a photo nor a file of the project is ever replaced
        raise InputError(f"{out}: {form.title} is a file whose name ends in {form.suffix}")
    contents = collect(project, predictions, threshold)
    lost = _write_folder(form, contents, out) if form.several_files else form.write(contents, out)
    return _summary(form, contents, out, lost)


def export_zip(
    project: Project,
    format: str,
    out: Path,
    *,
    predictions: Predictions = "omit",
    threshold: float = MATCH_THRESHOLD,
) -> ExportSummary:
    """As :func:`export_project`, into one file to be sent elsewhere: a ZIP file where the format is a folder.

    Photos are neither in it nor linked; ``photos.csv`` says which belongs where.
    """
    form = _available(format)
    contents = collect(project, predictions, threshold)
    contents.here = False
    if not form.several_files:
        return _summary(form, contents, out, form.write(contents, out))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lost = form.write(contents, folder)
        atomic_write(out, lambda new: _zip(folder, new))
    return _summary(form, contents, out, lost)


def _available(name: str) -> Format:
    if name not in FORMATS:
        raise InputError(f"no format is called {name!r}; there are {', '.join(FORMATS)}")
    if why := FORMATS[name].why:
        raise InputError(f"the format {name} {why}")
    return FORMATS[name]


def _summary(form: Format, contents: Contents, out: Path, lost: list[str]) -> ExportSummary:
    points = [point for item in contents.objects for point in item.points if point.xy is not None]
    predicted = sum(not point.marked for point in points)
    return ExportSummary(
        form.name, str(out), len(contents.photos), len(contents.objects), len(points), predicted, contents.notes + lost
    )


# ---------------------------------------------------------------- folders


def _check_folder(project: Project, form: Format, out: Path, *, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: a file; {form.title} is a folder")
    if form.links and out.resolve().is_relative_to(project.folder.resolve()):
        raise InputError(
            f"{out}: lies in {project.folder}, where its links would be taken for photos; choose a folder elsewhere"
        )
    ours = overwrite or (out / MARKER).is_file()
    if not ours and out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out}: holds other files; choose an empty folder, or a new one")


def _write_folder(form: Format, contents: Contents, out: Path) -> list[str]:
    """Write into a new folder, which then takes the place of the old one."""
    make_folder(out.parent)
    new = out.with_name(f".{out.name}.{token_hex(4)}{UNFINISHED}")
    make_folder(new)
    try:
        lost = form.write(contents, new)
        made = sorted(path.name for path in new.iterdir())
        write_text(new / MARKER, json.dumps({"format": form.name, "version": __version__, "files": made}) + "\n")
        if out.is_dir() and any(out.iterdir()):
            _replace_content(out, new)
        else:
            if out.is_dir():
                out.rmdir()  # Windows renames no folder to one that is there
            new.rename(out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return lost


def _replace_content(out: Path, new: Path) -> None:
    """Replace what an earlier export has made, entry by entry; other files stay."""
    try:
        before = set(json.loads((out / MARKER).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        before = set()
    old = new / f"{MARKER}.old"
    old.mkdir()
    entries = [path for path in new.iterdir() if path != old]
    for name in {path.name for path in entries} | before:
        if (out / name).parent == out and ((out / name).exists() or (out / name).is_symlink()):
            (out / name).rename(old / name)
    for path in entries:
        path.rename(out / path.name)


def _zip(folder: Path, out: Path) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder).as_posix())
