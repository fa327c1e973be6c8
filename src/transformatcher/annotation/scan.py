"""Folder → the photos of a project; moved and changed files are recognised."""

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from sqlite3 import Row

from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Photo
from transformatcher.errors import InputError, printable
from transformatcher.images import image_size
from transformatcher.inference.propagate_inputs import IMAGE_SUFFIXES

MISSING = "the file is not there any more"
RETRIED = (MISSING, "no such image file", "cannot be read")  # problems that may be gone though the file is the same
CACHE_SUFFIX = ".cache"  # of the folder beside a project's file, with thumbnails, which are no photos

Files = Mapping[str, os.stat_result]  # by path relative to the folder


@dataclass
class ScanReport:
    """What has changed in the folder since the last scan, by path relative to it."""

    added: list[str] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)  # old path → new path
    changed: list[str] = field(default_factory=list)  # other pixels under the same name
    missing: list[str] = field(default_factory=list)
    back: list[str] = field(default_factory=list)  # were missing
    left_out: dict[str, str] = field(default_factory=dict)  # what could not be read → why


def scan_photos(project: Project) -> ScanReport:
    """Compare the folder with the project, and bring the project up to date.

    New files are added. A file that is missing keeps its marks, and gets its new path where another file has the same
    content. Where a file has changed, its predictions are dropped, and its marks are kept. Only files that may have
    moved or changed are read.
    """
    report = ScanReport()
    found = dict(sorted(_files(project.folder, report)))
    known = {row["path"]: row for row in project.database.rows("SELECT * FROM photo ORDER BY path")}

    @cache
    def digest(path: str) -> str | None:
        try:
            return hash_file(project.folder / path)
        except InputError:  # identify_photo will say why
            return None

    touched_files = [path for path in known if path in found and not _same_file(known[path], found[path])]
    others = {path for path in touched_files if known[path]["digest"] not in (None, digest(path))}
    report.moved = _find_moved(known, found, others, digest)
    arrived = set(report.moved.values())
    report.added = [path for path in found if path not in arrived and (path not in known or path in report.moved)]
    report.changed = [path for path in touched_files if path in others and path not in report.moved]
    report.missing = [path for path in known if path not in found and path not in report.moved]
    gone = [path for path in report.missing if known[path]["problem"] != MISSING]
    report.back = [path for path in known if path in found and known[path]["problem"] == MISSING]
    retried = [path for path in known if path in found and (known[path]["problem"] or "").startswith(RETRIED)]
    seen = {path for path in (*touched_files, *retried) if path not in report.moved}
    if report.added or report.moved or gone or seen:
        _write(project, report, known, found, gone, seen)
    return report


def has_photos(folder: Path) -> bool:
    """Whether there is a photo in a folder or its sub-folders."""
    return next(_files(folder, ScanReport()), None) is not None


def _same_file(row: Row, entry: os.stat_result) -> bool:
    return bool(row["bytes"] == entry.st_size and row["mtime_ns"] == entry.st_mtime_ns)


def _write(
    project: Project, report: ScanReport, known: Mapping[str, Row], found: Files, gone: list[str], seen: set[str]
) -> None:
    with project.changing() as touched:
        run_many = project.database.run_many
        run_many("UPDATE photo SET problem = ? WHERE id = ?", [(MISSING, known[path]["id"]) for path in gone])
        # First away from the old paths, as one photo may take another one's. No relative path begins with a slash.
        moved = [(known[old]["id"], new) for old, new in report.moved.items()]
        run_many("UPDATE photo SET path = '/' || id WHERE id = ?", [(photo_id,) for photo_id, _ in moved])
        run_many("UPDATE photo SET path = ? WHERE id = ?", [(path, photo_id) for photo_id, path in moved])
        for path in report.changed:
            _forget_content(project, known[path]["id"])
        at = [*moved, *((known[path]["id"], path) for path in sorted(seen))]
        run_many(
            "UPDATE photo SET bytes = ?, mtime_ns = ?, problem = NULL WHERE id = ?",
            [(found[path].st_size, found[path].st_mtime_ns, photo_id) for photo_id, path in at],
        )
        run_many(
            "INSERT OR IGNORE INTO photo (path, bytes, mtime_ns, revision) VALUES (?, ?, ?, -1)",
            [(path, found[path].st_size, found[path].st_mtime_ns) for path in report.added],
        )
        touched |= {row["id"] for row in project.database.rows("SELECT id FROM photo WHERE revision = -1")}
        touched |= {photo_id for photo_id, _ in at} | {known[path]["id"] for path in gone}


def _find_moved(
    known: Mapping[str, Row], found: Files, others: Collection[str], digest: Callable[[str], str | None]
) -> dict[str, str]:
    """Photos whose file is now at another path, old → new; of equal files, the one with the same name comes first.

    Args:
        known: photos by path.
        found: files by path.
        others: paths of photos at which another content lies now.
        digest: of a file.
    """
    homeless: dict[tuple[object, ...], list[str]] = {}
    for path, row in known.items():
        if path not in found or path in others:
            homeless.setdefault(_identity(path, row["digest"], row["bytes"], row["mtime_ns"]), []).append(path)
    sizes = {known[path]["bytes"] for group in homeless.values() for path in group if known[path]["digest"] is not None}
    free = [path for path in found if path not in known or path in others]
    keys: dict[str, list[tuple[object, ...]]] = {}
    for path in free:
        entry = found[path]
        read = digest(path) if entry.st_size in sizes else None
        keys[path] = [_identity(path, None, entry.st_size, entry.st_mtime_ns)]
        keys[path] += [] if read is None else [_identity(path, read, 0, 0)]
    while True:
        moved: dict[str, str] = {}
        arrived: set[str] = set()
        for same_name in (True, False):
            for new in free:
                group = [old for key in keys[new] for old in homeless.get(key, ()) if old not in moved]
                old = next((old for old in group if not same_name or _name(old) == _name(new)), None)
                if old is not None and new not in arrived:
                    moved[old] = new
                    arrived.add(new)
        # A photo whose file was overwritten by another one of the project, and is nowhere else, has changed.
        taken = {path for path in others if path in arrived and path not in moved}
        if not taken:
            return moved
        free = [path for path in free if path not in taken]


def _identity(path: str, digest: str | None, size: int, mtime_ns: int) -> tuple[object, ...]:
    """What tells a photo from others; as long as nobody has read it, that is its name, size and time."""
    return (_name(path), size, mtime_ns) if digest is None else (digest,)


def _name(path: str) -> str:
    return PurePosixPath(path).name


def identify_photo(project: Project, photo: Photo) -> Photo:
    """Read a photo's size and the hash of its content, once. What cannot be read becomes the photo's ``problem``."""
    if photo.size is not None and photo.digest is not None:
        return photo
    path = project.path_of(photo)
    try:
        size, digest, problem = image_size(path), hash_file(path), None
    except InputError as error:
        size, digest, problem = None, None, str(error).removeprefix(printable(f"{path}: "))
        if not path.exists():
            problem = MISSING
    with project.changing([photo.id], computed=True):
        project.database.run(
            "UPDATE photo SET width = ?, height = ?, digest = ?, problem = ? WHERE id = ?",
            size and size[1], size and size[0], digest, problem, photo.id,
        )  # fmt: skip
    return project.photo(photo.id)


def set_problem(project: Project, photo_id: int, problem: str) -> None:
    """Note why a photo cannot be used, so that it is listed as failed and passed over."""
    with project.changing([photo_id], computed=True):
        project.database.run("UPDATE photo SET problem = ? WHERE id = ?", problem, photo_id)


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _forget_content(project: Project, photo_id: int) -> None:
    """Drop all that was computed from a photo's pixels."""
    run = project.database.run
    run("UPDATE photo SET width = NULL, height = NULL, digest = NULL WHERE id = ?", photo_id)
    run("DELETE FROM descriptor WHERE photo_id = ?", photo_id)
    for table, column in (("prediction", "instance_id"), ("predicted", "instance_id"), ("vote", "instance_id"),
                          ("vote", "reference_id")):  # fmt: skip
        run(f"DELETE FROM {table} WHERE {column} IN (SELECT id FROM instance WHERE photo_id = ?)", photo_id)


def _files(folder: Path, report: ScanReport) -> Iterator[tuple[str, os.stat_result]]:
    """The photos in a folder, at any depth, by relative path; hidden files and folders are skipped."""
    waiting = [""]
    while waiting:
        parent = waiting.pop()
        try:
            with os.scandir(folder / parent) as listed:
                entries = [entry for entry in listed if not entry.name.startswith(".")]
        except OSError as error:
            if not parent:
                raise InputError(f"{folder}: this folder cannot be read ({error.strerror})") from error
            report.left_out[parent] = f"cannot be read ({error.strerror})"
            continue
        names = {entry.name for entry in entries}
        for entry in entries:
            name = f"{parent}/{entry.name}" if parent else entry.name
            try:
                is_folder = entry.is_dir()
                if not is_folder and os.path.splitext(entry.name)[1].lower() not in IMAGE_SUFFIXES:  # noqa: PTH122
                    continue
                entry.name.encode()
                if is_folder and entry.is_symlink():
                    report.left_out[name] = "a link to another folder, which is not followed"
                elif is_folder:
                    is_cache = entry.name.endswith(CACHE_SUFFIX) and entry.name.removesuffix(CACHE_SUFFIX) in names
                    waiting += [] if is_cache else [name]
                elif entry.is_file():
                    yield name, entry.stat()
                elif entry.is_symlink():
                    report.left_out[name] = "a link to a file that is not there"
            except UnicodeEncodeError:
                report.left_out[ascii(name)] = "its name is not UTF-8; rename it"
            except OSError as error:
                report.left_out[name] = f"cannot be read ({error.strerror})"
