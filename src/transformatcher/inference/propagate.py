"""A few annotated photos → keypoints for a folder of others, in a COCO-keypoint file that annotation tools read."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from transformatcher import __version__
from transformatcher.config import to_plain
from transformatcher.data.coco_keypoints import AnnotatedObject
from transformatcher.data.prefetch import batched, prefetch
from transformatcher.errors import InputError
from transformatcher.files import write_text
from transformatcher.inference.calibration import MATCH_THRESHOLD
from transformatcher.inference.matched_pair import EncodedPhoto
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photos import check_points, to_pixels
from transformatcher.inference.propagate_coco import assemble, parse_record, to_record
from transformatcher.inference.propagate_inputs import (
    Annotations,
    References,
    absolute,
    find_targets,
    read_annotations,
)
from transformatcher.inference.propagate_voting import KeypointEstimate, vote_keypoints
from transformatcher.models.weights_io import hash_tensors
from transformatcher.run_folder import LineFile, Run, check_run_folder, open_run_folder
from transformatcher.schema import Size

RECORDS = "records.jsonl"  # in the folder OUT.partial while a run is not finished
WAY_OUT = "give the same arguments again to continue it, choose another --out, or give --overwrite to start again"

Record = dict[str, Any]  # one image with its annotations, see to_record


@dataclass(frozen=True)
class PropagationSummary:
    """The result of a run in numbers."""

    out: str
    images: int
    annotations: int
    keypoints: int  # found
    no_match: int  # keypoints not found
    failed: dict[str, str]  # image → why it could not be read


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
    """Find annotated keypoints on every image that has none, and write them as a COCO-keypoint file.

    Until all images are done, results are kept in the folder ``<out>.partial``; the same call continues a stopped run.

    Args:
        matcher: finds the points.
        annotations: a COCO-keypoint file; its objects with visible keypoints (v = 2) are the references.
        images: files, and folders searched to any depth; those annotated in the file are left out.
        out: the file to write; its file names are relative to the folder that :func:`find_targets` returns.
        images_root: see :func:`read_annotations`.
        category: propagate only this one.
        threshold: keypoints of less confidence are not found (v = 0); only for calibrated matchers, 0.5 by default.
        batch, threads: images at a time, and threads that decode them.
        overwrite: start again, and replace ``out``.
        track: called with the numbers of images done and in all.

    Example:
        >>> propagate(matcher, Path("annotations.json"), [Path("photos")], Path("predicted.json")).keypoints
    """
    if out.resolve() == annotations.resolve():
        raise InputError(f"{out}: holds the annotations themselves, which would be lost; choose another --out")
    source = read_annotations(annotations, images_root, category)
    root, names = find_targets(images, {item.image for item in source.objects})
    limit = _check_threshold(threshold, calibrated=matcher.calibration is not None)
    run = _describe_run(matcher, source, _relative(root, out.parent), category, limit)
    partial = _check_out(out, run, overwrite=overwrite)
    finished = {} if overwrite else _record_file(partial).read()
    propagator = KeypointPropagator(matcher, source.references) if set(names) - set(finished) else None
    failed: dict[str, str] = {}

    def compute(missing: Sequence[str]) -> Iterator[Record]:
        if propagator is not None:
            yield from _compute_records(propagator, root, missing, limit, batch, threads, failed)

    with _open_partial(partial, run, overwrite=overwrite) as file:
        records = file.complete(names, compute, lambda done, total: track(done + len(failed), total))
        summary = _write_coco(
            out, source, run, {root / name: records[name] for name in names if name in records}, failed
        )
        shutil.rmtree(partial)
    return summary


# ---------------------------------------------------------------- prediction


class KeypointPropagator:
    """Photos → the keypoints of every category on each. The references are encoded once.

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
        """The keypoints on each photo, by category."""
        if not pixels:
            return []
        targets = self.matcher.encode(pixels)
        shapes = {name: (len(group), len(group[0].kp_names)) for name, group in self.references.items()}
        kps_px = [{name: np.zeros((r, n, 2)) for name, (r, n) in shapes.items()} for _ in targets]
        confidence = [{name: np.zeros((r, n)) for name, (r, n) in shapes.items()} for _ in targets]
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


def _check_reference(item: AnnotatedObject, size: Size) -> None:
    where = f"{item.image}, annotation {item.id}"
    if item.image_size is not None and item.image_size != size:
        (h, w), (real_h, real_w) = item.image_size, size
        raise InputError(f"{where}: made for {w} × {h} pixels, but the image (turned upright) has {real_w} × {real_h}")
    check_points(item.kps_px[item.visible], size, where)


def _compute_records(
    propagator: KeypointPropagator,
    root: Path,
    names: Sequence[str],
    threshold: float | None,
    batch: int,
    threads: int,
    failed: dict[str, str],
) -> Iterator[Record]:
    """Records of the named images; those that cannot be read are added to ``failed``."""
    decoded = prefetch(lambda name: _decode(root / name), names, ahead=2 * batch, threads=threads)
    for chunk in batched(zip(names, decoded, strict=True), batch):
        failed.update({name: result for name, result in chunk if isinstance(result, str)})
        images = {name: result for name, result in chunk if isinstance(result, np.ndarray)}
        for (name, pixels), estimates in zip(images.items(), propagator(list(images.values())), strict=True):
            size = (pixels.shape[0], pixels.shape[1])
            yield to_record(name, size, estimates, propagator.references, threshold)


def _decode(path: Path) -> UInt8[np.ndarray, "_ _ 3"] | str:
    """The pixels of a photo, or why it cannot be read."""
    try:
        return to_pixels(path)
    except Exception as error:  # decoders raise errors of many kinds, and one bad image must not end the run
        return str(error) or type(error).__name__


# ---------------------------------------------------------------- one run and its files


def _check_out(out: Path, run: Run, *, overwrite: bool) -> Path:
    """The folder of unfinished results; InputError if it or ``out`` belongs to something else."""
    if out.is_dir():
        raise InputError(f"{out}: a folder; name the file itself")
    partial = out.with_name(f"{out.name}.partial")
    resumes = check_run_folder(partial, run, [RECORDS], way_out=WAY_OUT, overwrite=overwrite)
    if out.exists() and not (overwrite or resumes):
        raise InputError(f"{out}: exists already; choose another --out, or give --overwrite")
    return partial


@contextmanager
def _open_partial(partial: Path, run: Run, *, overwrite: bool) -> Iterator[LineFile[Record]]:
    with open_run_folder(partial, run, [RECORDS], way_out=WAY_OUT, overwrite=overwrite):
        yield _record_file(partial)


def _record_file(partial: Path) -> LineFile[Record]:
    return LineFile(
        partial / RECORDS,
        parse_record,
        "the record of an image",
        "delete it, or give --overwrite, to start again",
        key=lambda record: str(record["file_name"]),
        dump=lambda record: record,
    )


def _describe_run(
    matcher: Matcher, source: Annotations, images_root: str, category: str | None, threshold: float | None
) -> Run:
    return Run(
        "propagate",
        {
            "annotations": _hash([source.path]),
            "references": _hash(source.reference_images),
            "images_root": images_root,
            "category": category,
            "threshold": threshold,
            "model": to_plain(matcher.config),
            "weights": hash_tensors(matcher.model.state_dict()),
            "calibration": None if matcher.calibration is None else asdict(matcher.calibration),
        },
    )


def _write_coco(
    out: Path, source: Annotations, run: Run, records: Mapping[Path, Record], failed: dict[str, str]
) -> PropagationSummary:
    """Write the COCO-keypoint file, and count what is in it."""
    coco = assemble(source, records)
    info = {
        "description": "keypoints predicted by transformatcher; please check them",
        "version": __version__,
        "annotations": _relative(source.path, out.parent),
        "calibrated": run.arguments["calibration"] is not None,
        **{key: run.arguments[key] for key in ("images_root", "category", "threshold", "weights")},
        "failed": [{"file_name": name, "error": failed[name]} for name in sorted(failed)],
    }
    write_text(out, json.dumps({"info": info, **coco}, indent=1) + "\n")
    wanted = sum(len(group[0].kp_names) for group in source.references.values()) * len(records)
    found = sum(annotation["num_keypoints"] for annotation in coco["annotations"])
    return PropagationSummary(str(out), len(records), len(coco["annotations"]), found, wanted - found, failed)


def _check_threshold(threshold: float | None, *, calibrated: bool) -> float | None:
    """The confidence that a keypoint needs; None where confidence is not a probability."""
    if threshold is None:
        return MATCH_THRESHOLD if calibrated else None
    if not calibrated:
        raise InputError(
            "--threshold: this model's confidence is not calibrated, so it is not a probability; "
            "leave the option out, or calibrate the model with transformatcher calibrate"
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


def _relative(path: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on another drive
        return absolute(path).as_posix()
