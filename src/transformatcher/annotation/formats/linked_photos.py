"""Photos of a project → names below one folder that no two share, and links there: photos are never copied."""

import csv
import io
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath

from transformatcher.annotation.formats.objects import PhotoToExport
from transformatcher.errors import InputError
from transformatcher.files import make_folder, write_text


def unique_names(wanted: Mapping[str, str], reserved: Collection[str] = ()) -> dict[str, str]:
    """Names for photos, of which no two differ in their suffix or in capitals alone.

    Args:
        wanted: the names to begin with, by the photos' paths.
        reserved: names of folders that get a ``_`` at their end; so do those that end with a dot.

    Example:
        >>> unique_names({"a/1.jpg": "a/1.jpg", "a/1.png": "a/1.png", "b/1.jpg": "images/1.jpg"}, reserved=["images"])
        {'a/1.jpg': 'a/1.jpg', 'a/1.png': 'a/1_2.png', 'b/1.jpg': 'images_/1.jpg'}
    """
    taken: set[str] = set()
    names = {}
    for path, name in wanted.items():
        *folders, file = ("".join(c if c.isprintable() else "_" for c in part) for part in PurePosixPath(name).parts)
        safe = PurePosixPath(*(f"{one}_" if one in reserved or one.endswith(".") else one for one in folders), file)
        stem, number = safe.stem, 1
        while (key := safe.with_suffix("").as_posix().casefold()) in taken:
            number += 1
            safe = safe.with_name(f"{stem}_{number}{safe.suffix}")
        taken.add(key)
        names[path] = safe.as_posix()
    return names


def folder_name(name: str) -> str:
    """A name as that of a folder on every system."""
    return re.sub(r'[<>:"/\\|?*\x00-\x1f]', "_", name).strip(". ") or "_"


def link_photos(photos: Iterable[PhotoToExport], names: Mapping[str, str], folder: Path, *, links: bool) -> None:
    """Put a link to each photo into a folder, and ``photos.csv`` beside it, which says what is what.

    Args:
        photos: to be linked.
        names: of the links, by the photos' paths.
        folder: is created, with sub-folders as in the names.
        links: False: only the folders and the table, for a place where the photos are not.
    """
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(("link", "photo"))
    for photo in photos:
        link = folder / names[photo.path]
        make_folder(link.parent)
        if links:
            _link(photo.file, link)
        rows.writerow((names[photo.path], photo.path))
    write_text(folder.parent / "photos.csv", table.getvalue())


def _link(photo: Path, link: Path) -> None:
    try:
        link.symlink_to(photo.absolute())
    except OSError:  # Windows asks for a privilege, and some file systems have none
        try:
            os.link(photo, link)
        except OSError as error:
            raise InputError(
                f"{link}: no link to {photo} can be made there ({error.strerror}); export to the drive of the photos"
            ) from error
