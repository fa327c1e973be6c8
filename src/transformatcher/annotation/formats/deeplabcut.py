"""Photos with objects → labelled frames of DeepLabCut: a table of each folder of photos, with links to them."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from transformatcher.annotation.formats.linked_photos import folder_name, link_photos, unique_names
from transformatcher.annotation.formats.objects import Contents, ObjectToExport, PhotoToExport
from transformatcher.annotation.records import HIDDEN, Category
from transformatcher.files import write_text

SCORER = "transformatcher"
FRAMES = "labeled-data"


def write_deeplabcut(contents: Contents, out: Path) -> list[str]:
    """Write a folder for each category into a folder, which is empty. Returns what gets lost."""
    lost = []
    taken: set[str] = set()
    for category in contents.categories:
        chosen: list[tuple[PhotoToExport, ObjectToExport]] = []
        for photo in contents.photos:
            group = [item for item in photo.objects if item.category == category and item.positions]
            if group:
                chosen.append((photo, max(group, key=lambda item: len(item.positions))))
            if len(group) > 1:
                lost.append(
                    f"{photo.path}: of {len(group)} objects ({category.name}), the one with most points is kept"
                )
        if chosen:
            name = folder_name(category.name)
            if name.casefold() in taken:
                name = f"{name}-{category.id}"
            taken.add(name.casefold())
            _write_category(category, chosen, out / name, contents)
    if any(item.box is not None for item in contents.objects):
        lost.append("DeepLabCut has no boxes")
    if any(point.visibility == HIDDEN for item in contents.objects for point in item.points):
        lost.append("DeepLabCut has no hidden points: they look like visible ones")
    if any(category.skeleton for category in contents.categories):
        lost.append("DeepLabCut's labels have no skeletons")
    if contents.says_not_there:
        lost.append("DeepLabCut has no “not there”: such keypoints look like those of which nothing is known")
    if any(item.score is not None for item in contents.objects):
        lost.append("DeepLabCut's labels have no confidence: predicted points look like marks")
    return lost


def _write_category(
    category: Category, chosen: Sequence[tuple[PhotoToExport, ObjectToExport]], out: Path, contents: Contents
) -> None:
    wanted = {}
    for photo, _ in chosen:
        *folders, file = PurePosixPath(photo.path).parts
        wanted[photo.path] = f"{'__'.join(folders) or folder_name(contents.folder.absolute().name)}/{file}"
    names = unique_names(wanted)
    link_photos([photo for photo, _ in chosen], names, out / FRAMES, links=contents.here)
    videos: dict[str, list[tuple[str, ObjectToExport]]] = {}  # what DeepLabCut calls so: a folder of frames
    for photo, item in chosen:
        video, file = names[photo.path].split("/")
        videos.setdefault(video, []).append((file, item))
    for video, rows in videos.items():
        write_text(out / FRAMES / video / f"CollectedData_{SCORER}.csv", _table(category, video, rows))


def _table(category: Category, video: str, rows: Sequence[tuple[str, ObjectToExport]]) -> str:
    """The table with its three rows of headers and three columns of names, as pandas writes such an index."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    twice = [name for name in category.names for _ in range(2)]
    table.writerow(["scorer", "", "", *(SCORER for _ in twice)])
    table.writerow(["bodyparts", "", "", *twice])
    table.writerow(["coords", "", "", *("x", "y") * len(category.names)])
    for file, item in rows:
        values = [value for point in item.points for value in (point.xy or ("", ""))]
        table.writerow([FRAMES, video, file, *values])
    return text.getvalue()
