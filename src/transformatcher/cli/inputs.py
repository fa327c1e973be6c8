"""Text of an argument → a checked path, named points, a number of threads."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformatcher.errors import InputError
from transformatcher.files import check_writable, file_path, is_file, read_json

PICTURES = {".png", ".jpg", ".jpeg", ".pdf", ".svg", ".webp"}  # formats that matplotlib writes


def named_folder(out: str) -> Path:
    """The folder that ``--out`` names."""
    if not out:
        raise InputError("--out is empty; name a folder")
    return Path(out)


def check_picture(out: str | None, photos: Iterable[str] = ()) -> None:
    """Refuse a name that no picture can be written to; None asks for no picture.

    Args:
        out: the name.
        photos: of the input, and folders of them: a picture neither replaces one nor lies among them.
    """
    if out is None:
        return
    if file_path(out, "the picture").is_dir():
        raise InputError(f"{out}: a folder; name the picture itself")
    if Path(out).suffix.lower() not in PICTURES:
        raise InputError(f"{out}: a picture's name ends in .png, .jpg, .pdf, .svg or .webp")
    for photo in map(Path, photos):
        if Path(out).resolve() == photo.resolve():
            raise InputError(f"{out}: one of the photos, which would be lost; choose another name")
        if photo.is_dir() and Path(out).resolve().is_relative_to(photo.resolve()):
            raise InputError(f"{out}: lies among the photos of {photo}; choose another folder")
    check_writable(Path(out))


def picture_names(
    option: str, given: str | None, src: str, targets: Sequence[str], suffix: str = "", count: int = 1
) -> list[list[Path]]:
    """For each target, the pictures that an option asks for.

    Args:
        option: its name, for messages.
        given: its value: a picture for one target, a folder for several; None asks for no pictures.
        src, targets: photos; in a folder, a picture is called SOURCE-TARGET.
        suffix: is appended to that name.
        count: pictures of each target; more than one are numbered from 1.
    """
    if given is None:
        return [[] for _ in targets]
    if len(targets) == 1:
        check_picture(given, [src, *targets])
        names = [Path(given)]
    else:
        if not given:
            raise InputError(f"{option} is empty; name a folder")
        if Path(given).suffix.lower() in PICTURES or Path(given).is_file():
            raise InputError(f"{option} {given}: {len(targets)} targets make a picture each; name a folder for them")
        names = [Path(given) / f"{stem}{suffix}.png" for stem in _unique_stems(src, targets)]
    if count == 1:
        return [[name] for name in names]
    return [[name.with_name(f"{name.stem}-{i}{name.suffix}") for i in range(1, count + 1)] for name in names]


def _unique_stems(src: str, targets: Sequence[str]) -> list[str]:
    """SOURCE-TARGET for each target; targets of the same name are numbered."""
    stems: list[str] = []
    for target in targets:
        stem = f"{Path(src).stem}-{Path(target).stem}"
        alike = sum(other == stem or other.startswith(f"{stem} (") for other in stems)
        stems.append(f"{stem} ({alike + 1})" if alike else stem)
    return stems


def read_points(text: str) -> dict[str, list[float]]:
    """``"x,y;x,y"`` or a JSON file with [[x, y], …] or {name: [x, y], …} → (x, y) in pixels by name or number."""
    try:
        if text.lower().endswith(".json") or is_file(Path(text)):
            data = read_json(Path(text))
            named = data if isinstance(data, dict) else {str(i): point for i, point in enumerate(data, 1)}
            points = {name: [x + 0.0, y + 0.0] for name, (x, y) in named.items()}
        else:
            pairs = [point.split(",") for point in text.split(";") if point.strip()]
            points = {str(i): [float(x), float(y)] for i, (x, y) in enumerate(pairs, 1)}
        "".join(points).encode()  # a lone surrogate could not be printed
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"--keypoints {text!r}: expected 'x,y;x,y', or a JSON file with [[x, y], …] or {{name: [x, y], …}}"
        ) from error
    if not points:
        raise InputError(f"--keypoints {text!r}: no point there")
    return points


def set_threads(threads: int | None) -> None:
    """Let torch compute with this many threads; None keeps its default."""
    import torch

    if threads:
        torch.set_num_threads(min(threads, os.cpu_count() or 1))  # more would only wait for each other
