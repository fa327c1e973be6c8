"""A few annotated photos → keypoints for a folder of others, in a COCO-keypoint file that annotation tools read."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from transformatcher import __version__
from transformatcher.config import to_plain
from transformatcher.data.coco_keypoints import AnnotatedObject, box_around, find_coco, load_coco_objects
from transformatcher.errors import InputError
from transformatcher.files import append_lines, complete_lines, read_json, write_text
from transformatcher.inference.calibration import MATCH_THRESHOLD
from transformatcher.inference.matched_pair import EncodedPhoto
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photos import check_points, to_pixels
from transformatcher.models.weights_io import hash_tensors
from transformatcher.schema import Size

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}  # of the files taken from a folder
NEAR = 0.1  # of the longer side of a photo: references whose answers lie this near to each other agree

References = Mapping[str, Sequence[AnnotatedObject]]  # by category


@dataclass(frozen=True)
class KeypointEstimate:
    """The keypoints of one category on one photo."""

    kps_px: Float[np.ndarray, "n 2"]
    confidence: Float[np.ndarray, " n"]  # 0 where no reference shows the keypoint
    chosen: Int[np.ndarray, " n"]  # which of the category's references each keypoint comes from


@dataclass(frozen=True)
class PropagationSummary:
    """What a run came to."""

    out: str
    images: int
    annotations: int
    keypoints: int  # found
    no_match: int  # looked for, and not found
    failed: dict[str, str]  # file → why nothing was predicted for it


def propagate(
    matcher: Matcher,
    annotations: Path,
    images: Sequence[Path],
    out: Path,
    *,
    images_root: Path | None = None,
    category: str | None = None,
    threshold: float | None = None,
    batch: int = 4,
    threads: int = 2,
    overwrite: bool = False,
    track: Callable[[int, int], None] = lambda _done, _total: None,
) -> PropagationSummary:
    """Carry annotated keypoints over to every image that has none, and write them as a COCO-keypoint file.

    Each image's result is appended to ``<out>.partial`` as it comes; the same call goes on where another was stopped.
    An image that cannot be read is listed, and the others are done all the same.

    Args:
        matcher: finds the points.
        annotations: a COCO-keypoint file; its objects with visible keypoints (v = 2) are the references.
        images: files, and folders searched to any depth; those annotated in the file are left out.
        out: the file to write, whole and at the end. Its ``file_name`` entries are relative to the one folder given, or
            to the folder around all that was given.
        images_root: what the ``file_name`` entries of ``annotations`` are relative to; else ``images/`` beside it, or
            its own folder.
        category: carry over only this one.
        threshold: keypoints less sure are none (v = 0); for a calibrated matcher only, where 0.5 is the default.
        batch, threads: images at a time, and threads that decode them.
        overwrite: begin anew, and replace ``out``.
        track: called with the numbers of images done and in all.
    """
    annotated_root = images_root or (find_coco(annotations, "")[1] if annotations.is_file() else annotations.parent)
    objects = load_coco_objects(annotations, annotated_root)
    data = read_json(annotations)
    references = choose_references(objects, data["categories"], annotations, category)
    root, names = find_targets(images, {item.image for item in objects})
    limit = _check_threshold(threshold, calibrated=matcher.calibration is not None)
    run = {
        "annotations": _hash([annotations]),
        "references": _hash(sorted({item.image for group in references.values() for item in group})),
        "images_root": _relative(root, out.parent),
        "category": category,
        "threshold": limit,
        "model": to_plain(matcher.config),
        "weights": hash_tensors(matcher.model.state_dict()),
        "calibration": None if matcher.calibration is None else asdict(matcher.calibration),
    }
    partial = out.with_name(f"{out.name}.partial")
    done = _resume(partial, out, run, overwrite=overwrite)
    failed: dict[str, str] = {}
    todo = [name for name in names if name not in done]
    track(len(names) - len(todo), len(names))
    if todo:
        carrier = KeypointPropagator(matcher, references)
        if not done:
            write_text(partial, json.dumps({"run": run}) + "\n")
        with append_lines(partial) as write:
            for pixels_of, faults in _decoded(root, todo, batch, threads):
                failed |= faults
                for (name, pixels), guesses in zip(pixels_of.items(), carrier(list(pixels_of.values())), strict=True):
                    done[name] = to_record(name, (pixels.shape[0], pixels.shape[1]), guesses, references, limit)
                    write(json.dumps(done[name]))
                track(sum(name in done or name in failed for name in names), len(names))
    known = {
        _same(annotated_root / entry["file_name"]): entry["id"] for entry in data["images"] if "file_name" in entry
    }
    records = {root / name: done[name] for name in names if name in done}
    notes = assemble(data, records, {path: known[_same(path)] for path in records if _same(path) in known})
    info = {
        "description": "keypoints predicted by transformatcher, to be looked through",
        "version": __version__,
        "annotations": _relative(annotations, out.parent),
        "calibrated": matcher.calibration is not None,
        **{key: run[key] for key in ("images_root", "category", "threshold", "weights")},
        "failed": [{"file_name": name, "error": failed[name]} for name in sorted(failed)],
    }
    write_text(out, json.dumps({"info": info, **notes}, indent=1) + "\n")
    partial.unlink(missing_ok=True)
    looked_for = sum(len(item[0].kp_names) for item in references.values()) * len(records)
    found = sum(note["num_keypoints"] for note in notes["annotations"])
    return PropagationSummary(str(out), len(records), len(notes["annotations"]), found, looked_for - found, failed)


# ---------------------------------------------------------------- what is carried over, and to where


def choose_references(
    objects: Sequence[AnnotatedObject], categories: Sequence[Mapping[str, Any]], source: Path, category: str | None
) -> dict[str, list[AnnotatedObject]]:
    """The annotated objects by category, in the order of the file's categories; or only those of one."""
    names = [str(entry["name"]) for entry in categories]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{source}: two categories are called {name!r}")
    if category is not None and category not in names:
        raise InputError(f"{source}: no category is called {category!r}; it has {', '.join(names)}")
    groups = {name: [item for item in objects if item.category == name] for name in names}
    chosen = {name: group for name, group in groups.items() if group and category in (None, name)}
    if not chosen:
        raise InputError(
            f"{source}: no annotated object{f' of {category!r}' if category else ''} with a visible keypoint (v = 2), "
            "so there is nothing to carry over"
        )
    return chosen


def find_targets(given: Sequence[Path], annotated: Collection[Path]) -> tuple[Path, list[str]]:
    """Files and folders → (a folder around them all, the images in it by name, sorted), but for those annotated."""
    for path in given:
        if not path.exists():
            raise InputError(f"{path}: no such image or folder")
        if path.is_dir():
            _check_readable(path)
    found = [file for path in given for file in ([path] if path.is_file() else _images_in(path))]
    if not found:
        raise InputError(f"{', '.join(map(str, given))}: no image there ({', '.join(sorted(ENDINGS))})")
    taken = {_same(path) for path in annotated}
    targets = {_same(path): path for path in found if _same(path) not in taken}
    if not targets:
        raise InputError(f"{', '.join(map(str, given))}: all {len(found)} images there are annotated already")
    if len(given) == 1 and given[0].is_dir():
        root = given[0]
    else:
        root = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in map(_absolute, given)]))
    return root, sorted(_absolute(path).relative_to(_absolute(root)).as_posix() for path in targets.values())


def _check_readable(folder: Path) -> None:
    try:
        next(folder.iterdir(), None)
    except OSError as error:
        raise InputError(f"{folder}: this folder cannot be read ({error.strerror})") from error


def _images_in(folder: Path) -> list[Path]:
    def hidden(path: Path) -> bool:
        return any(part.startswith(".") for part in path.relative_to(folder).parts)

    return [
        path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file() and not hidden(path)
    ]


# ---------------------------------------------------------------- prediction


class KeypointPropagator:
    """Photos in, the keypoints of every category on each out; the references' features are computed once.

    Args:
        matcher: finds the points.
        references: their images are read here, and must fit their annotations.
    """

    def __init__(self, matcher: Matcher, references: References) -> None:
        self.matcher, self.references = matcher, references
        images = sorted({item.image for group in references.values() for item in group})
        self.photos: dict[Path, EncodedPhoto] = {image: matcher.encode([image])[0] for image in images}
        for group in references.values():
            for item in group:
                _check_reference(item, self.photos[item.image].size)

    def __call__(self, pixels: Sequence[UInt8[np.ndarray, "_ _ 3"]]) -> list[dict[str, KeypointEstimate]]:
        """The category → guess of each photo."""
        if not pixels:
            return []
        targets = self.matcher.encode(pixels)
        shape = {name: (len(group), len(group[0].kp_names)) for name, group in self.references.items()}
        kps_px = [{name: np.zeros((r, n, 2)) for name, (r, n) in shape.items()} for _ in targets]
        confidence = [{name: np.zeros((r, n)) for name, (r, n) in shape.items()} for _ in targets]
        for image, photo in self.photos.items():
            for target, pair in enumerate(self.matcher.pairs(photo, targets, batch=len(targets))):
                for name, group in self.references.items():
                    for row, item in enumerate(group):
                        if item.image == image:
                            matches = pair.points(item.kps_px[item.visible])
                            kps_px[target][name][row, item.visible] = matches.keypoints1
                            confidence[target][name][row, item.visible] = matches.confidence
        return [
            {name: vote_keypoints(kps_px[i][name], confidence[i][name], max(photo.size)) for name in self.references}
            for i, photo in enumerate(targets)
        ]


def vote_keypoints(
    kps_px: Float[np.ndarray, "r n 2"], confidence: Float[np.ndarray, "r n"], side_px: int
) -> KeypointEstimate:
    """The answers of several references for each keypoint → the one that has most support.

    Each reference votes, for its own place and, fading with distance, for those around it; its vote weighs its
    confidence times how sure it is of this photo as a whole. So of two references the surer wins, and of more, two that
    agree beat one that stands alone.

    Args:
        kps_px: where each reference puts each keypoint.
        confidence: how sure it is; 0 where it does not show the keypoint.
        side_px: the longer side of the photo.
    """
    trust = confidence.sum(axis=1) / (confidence > 0).sum(axis=1).clip(1)  # (r,)
    distance = np.linalg.norm(kps_px[:, None] - kps_px[None], axis=3)  # (r, r, n)
    votes = confidence * trust[:, None]
    support = (np.exp(-((distance / (NEAR * side_px)) ** 2) / 2) * votes[None]).sum(axis=1)  # (r, n)
    chosen = np.where(confidence > 0, support, -1.0).argmax(axis=0)  # (n,)
    column = np.arange(len(chosen))
    return KeypointEstimate(kps_px[chosen, column], confidence[chosen, column], chosen)


def _check_reference(item: AnnotatedObject, size: Size) -> None:
    where = f"{item.image}, annotation {item.id}"
    if item.image_size is not None and item.image_size != size:
        (h, w), (real_h, real_w) = item.image_size, size
        raise InputError(f"{where}: made for {w} × {h} pixels, but the image (turned upright) has {real_w} × {real_h}")
    check_points(item.kps_px[item.visible], size, where)


def _decoded(
    root: Path, names: Sequence[str], batch: int, threads: int
) -> Iterator[tuple[dict[str, UInt8[np.ndarray, "_ _ 3"]], dict[str, str]]]:
    """Batches of images, and why some are not among them; threads decode the next two while one is in use."""
    chunks = (names[start : start + batch] for start in range(0, len(names), batch))
    with ThreadPoolExecutor(threads) as pool:

        def submit(most: int) -> list[dict[str, Future[np.ndarray]]]:
            return [{name: pool.submit(to_pixels, root / name) for name in chunk} for chunk in islice(chunks, most)]

        ahead = submit(2)
        while ahead:
            futures = ahead.pop(0)
            faults = {name: future.exception() for name, future in futures.items()}  # of any kind: decoders vary
            pixels = {name: future.result() for name, future in futures.items() if faults[name] is None}
            ahead += submit(1)
            yield pixels, {name: str(fault) or type(fault).__name__ for name, fault in faults.items() if fault}


# ---------------------------------------------------------------- COCO


def to_record(
    name: str, size: Size, guesses: Mapping[str, KeypointEstimate], references: References, threshold: float | None
) -> dict[str, Any]:
    """One image with its annotations, in COCO's words but for ids; objects without one keypoint found are left out."""
    notes = []
    for category, guess in guesses.items():
        found = guess.confidence > 0 if threshold is None else (guess.confidence >= threshold) & (guess.confidence > 0)
        if found.any():
            ids = [item.id for item in references[category]]
            notes.append({"category": category, **_note(guess, found, ids, size)})
    return {"file_name": name, "width": size[1], "height": size[0], "annotations": notes}


def _note(guess: KeypointEstimate, found: Bool[np.ndarray, " n"], ids: Sequence[str], size: Size) -> dict[str, Any]:
    limits = np.array([size[1], size[0]], dtype=float)
    points = np.where(found[:, None], guess.kps_px.clip(0, limits).round(2), 0.0)
    triples = np.concatenate([points, np.where(found, 2, 0)[:, None]], axis=1)
    box = box_around(points[found], size)
    votes = np.bincount(guess.chosen[found], minlength=len(ids))
    return {
        "keypoints": [int(value) if value.is_integer() else value for value in triples.reshape(-1).tolist()],
        "num_keypoints": int(found.sum()),
        "bbox": box.tolist(),
        "area": round(float(box[2] * box[3]), 2),
        "iscrowd": 0,
        "score": round(float(guess.confidence[found].mean()), 4),
        "keypoint_scores": guess.confidence.round(4).tolist(),
        "reference": ids[int(votes.argmax())],  # the one that most keypoints come from
        "keypoint_references": [ids[row] if there else None for row, there in zip(guess.chosen, found, strict=True)],
    }


def assemble(
    data: Mapping[str, Any], records: Mapping[Path, Mapping[str, Any]], known: Mapping[Path, Any]
) -> dict[str, Any]:
    """Records → images, annotations and categories with ids that are free in the file they go with.

    Args:
        data: the annotation file that the references come from.
        records: of each image, from :func:`to_record`.
        known: ids of those images that this file lists already.
    """

    def free(key: str) -> int:
        return 1 + max((entry["id"] for entry in data[key] if isinstance(entry.get("id"), int)), default=0)

    reference_ids = {str(note["id"]): note["id"] for note in data["annotations"] if "id" in note}
    category_ids = {str(entry["name"]): entry["id"] for entry in data["categories"]}
    next_image, next_note = free("images"), free("annotations")
    images: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for path, record in records.items():
        image_id = known.get(path, next_image)
        next_image += path not in known
        images.append({"id": image_id, **{key: record[key] for key in ("file_name", "width", "height")}})
        for note in record["annotations"]:
            keys = {"id": next_note + len(notes), "image_id": image_id}
            content = {key: value for key, value in note.items() if key != "category"} | {
                "reference": reference_ids[note["reference"]],
                "keypoint_references": [reference_ids.get(name) for name in note["keypoint_references"]],
            }
            notes.append(keys | {"category_id": category_ids[note["category"]]} | content)
    return {"images": images, "annotations": notes, "categories": data["categories"]}


# ---------------------------------------------------------------- going on where a run stopped


def _resume(partial: Path, out: Path, run: Mapping[str, Any], *, overwrite: bool) -> dict[str, dict[str, Any]]:
    """The records that an earlier run with the same inputs left, by file name."""
    if out.is_dir():
        raise InputError(f"{out}: a folder; name the file itself")
    if overwrite:
        return {}
    lines = _read_partial(partial) if partial.is_file() else []
    if len(lines) < 2:  # nothing was done yet
        if out.exists():
            raise InputError(f"{out}: is there already; choose another --out, or give --overwrite")
        return {}
    before, now = lines[0]["run"], json.loads(json.dumps(run))
    if differing := [key for key in now if before.get(key) != now[key]]:
        words = ", ".join(_difference(key, before.get(key), now[key]) for key in differing)
        raise InputError(
            f"{partial}: left by a run with other inputs, which differ in {words}; "
            "give the same again to go on with it, another --out, or --overwrite to begin anew"
        )
    return {record["file_name"]: record for record in lines[1:]}


def _difference(key: str, before: object, now: object) -> str:
    telling = key in ("category", "threshold", "images_root")
    return f"{key} ({json.dumps(before)} there, {json.dumps(now)} here)" if telling else key


def _read_partial(partial: Path) -> list[dict[str, Any]]:
    """What a stopped run was made of, then its records."""
    try:
        lines = [json.loads(line) for line in complete_lines(partial)]
    except OSError as error:
        raise InputError(f"{partial}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{partial}: damaged ({error}); remove it, or give --overwrite") from error
    heads, records = lines[:1], lines[1:]
    if not all(isinstance(line, dict) for line in lines) or not (
        all(isinstance(head.get("run"), dict) for head in heads) and all("file_name" in record for record in records)
    ):
        raise InputError(f"{partial}: not what a stopped run leaves; remove it, or give --overwrite")
    return lines


def _check_threshold(threshold: float | None, *, calibrated: bool) -> float | None:
    """The confidence that a keypoint needs; None where confidence cannot say that there is no match."""
    if threshold is None:
        return MATCH_THRESHOLD if calibrated else None
    if not calibrated:
        raise InputError(
            "--threshold: this model's confidence is not calibrated, so it cannot tell what has no match; "
            "leave it out, or see transformatcher calibrate"
        )
    if not 0 <= threshold <= 1:
        raise InputError(f"--threshold {threshold:g}: a confidence lies between 0 and 1")
    return threshold


def _hash(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 (resolve would follow links, and change names)


def _same(path: Path) -> Path:
    """One name for each file, however it is reached."""
    return path.resolve()


def _relative(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # another drive
        return _absolute(path).as_posix()
