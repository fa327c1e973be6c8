"""A few annotated photos → keypoints for a folder of others, in a COCO-keypoint file that annotation tools read."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from transformatcher import __version__
from transformatcher.data.coco_keypoints import AnnotatedObject
from transformatcher.data.prefetch import batched, prefetch
from transformatcher.errors import InputError, printable
from transformatcher.files import read_json, write_text
from transformatcher.images import image_size as read_size
from transformatcher.images import read_reduced
from transformatcher.inference.calibration import MATCH_THRESHOLD, SAME_KIND_THRESHOLD
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.engine import Engine, LocalEngine, Track, Worker, ignore
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.photos import check_points, to_pixels
from transformatcher.inference.propagate_coco import assemble, parse_record, select_categories, to_record
from transformatcher.inference.propagate_inputs import (
    PREDICTED,
    Annotations,
    References,
    find_images,
    hash_files,
    read_annotations,
    relative,
)
from transformatcher.inference.propagate_plan import Names, fingerprint_references, hash_references, make_plan
from transformatcher.inference.propagate_voting import (
    KeypointEstimate,
    Vote,
    cast_votes,
    choose_voters,
    count_votes,
)
from transformatcher.run_folder import LineFile, Run, check_run_folder, open_run_folder
from transformatcher.schema import Size

MOST_REFERENCES = 6  # that vote on an image: more are no better, see docs/annotate.md
CHUNK = 32  # photos that a worker of a cluster is given at a time
LARGE = 12_000_000  # pixels; photos of more are decoded with sides of no more than DETAIL times the network's input
DETAIL = 8
MAX_KEPT = 64  # references whose crops and mirror images stay encoded
RESULT = "propagate"  # the key of the run in the info of its result
MADE_FROM = "made_from"  # there: the hash of the annotation file
RECORDS = "records.jsonl"  # in the folder OUT.partial while a run is not finished
WAY_OUT = "give the same arguments again to continue it, choose another --out, or give --overwrite to start again"

Record = dict[str, Any]  # one image with its annotations, see to_record


@dataclass(frozen=True)
class PropagationSummary:
    """What a run has predicted, in numbers."""

    out: str
    images: int
    annotations: int
    keypoints: int  # found
    no_match: int  # keypoints not found
    kept: int  # images that the file had predictions for already
    other_kind: list[str]  # images that probably show another kind of thing than the references
    outside: list[str]  # points of the references that lie outside their photos, which are not used
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
    most_references: int | None = MOST_REFERENCES,
    batch: int = 4,
    threads: int = 2,
    again: bool = False,
    overwrite: bool = False,
    engine: Engine | None = None,
    device: str | None = None,
    track: Callable[[int, int], None] = lambda _done, _total: None,
) -> PropagationSummary:
    """Find annotated keypoints on every image that has none, and write a COCO-keypoint file with both.

    ``out`` may be the file of the annotations itself; then predictions are added to it. It may also be the result of an
    earlier run with the same annotations, which is then continued. Images that are predicted there already are left
    alone, unless the references or the settings have changed since. What a person has marked is never a prediction's
    to change, and a prediction that a person has corrected is a reference.

    Until all images are done, results are kept in the folder ``<out>.partial``; the same call continues a stopped run.

    Args:
        matcher: finds the points.
        annotations: a COCO-keypoint file; its objects with visible keypoints (v = 2) are the references, except those
            that were predicted.
        images: files, and folders searched to any depth; those annotated in the file are left out.
        out: the file to write; ``images_root`` in its ``info`` says what its file names are relative to.
        images_root: see :func:`read_annotations`.
        category: propagate only this one.
        threshold: keypoints of less confidence are not found (v = 0); only for calibrated matchers, 0.5 by default.
        most_references: how many references of a category vote on each image, those that look most like it; None: all.
        batch, threads: images at a time, and threads that decode them.
        again: predict images anew that have predictions already, also where a person has removed one.
        overwrite: start again from ``annotations``, and replace ``out``.
        engine: what runs the workers; None: one worker in this process.
        device: of the workers; None: the matcher's.
        track: called with the numbers of images done and in all.

    Example:
        >>> propagate(matcher, Path("annotations.json"), [Path("photos")], Path("predicted.json")).keypoints
    """
    if out.is_dir():
        raise InputError(f"{out}: a folder; name the file itself")
    source = _open_source(annotations, out, images_root, category, overwrite=overwrite)
    in_place = _same_file(source.path, out)
    root, names = find_images(images, source.listed_images(), source.root if in_place else None)
    limit = _check_threshold(threshold, calibrated=matcher.calibrated)
    settings = _describe_settings(matcher, limit, most_references)
    # Another precision of the backbone is no reason to predict all anew: it may differ between two machines.
    made_by = {key: value for key, value in settings.items() if key != "precision"}
    source.check_photos()
    fingerprints = fingerprint_references(source.references, made_by)
    plan = make_plan(source, root, names, fingerprints, again=again or overwrite)
    if not (plan.wanted or plan.kept):
        raise InputError(f"{', '.join(map(str, images))}: all {len(names)} images there are annotated already")
    run = _describe_run(source, relative(root, out.parent), category, settings)
    partial = _check_out(out, run, in_place=in_place, overwrite=overwrite)
    finished = {} if overwrite else _record_file(partial).read()
    references = {name: group for name, group in source.references.items() if name in plan.categories}
    photos = PhotosToPredict(
        matcher, device, references, most_references, root, plan.wanted, limit, fingerprints, batch, threads
    )
    work = photos.make_worker() if engine is None and plan.wanted.keys() - finished else None  # reads the references
    failed: dict[str, str] = {}

    def compute(missing: Sequence[str]) -> Iterator[Record]:
        if not missing:
            return
        make_worker = photos.make_worker if work is None else lambda _track: work
        for name, result in (engine or LocalEngine()).run(make_worker, missing, name="propagate", chunk=CHUNK):
            if isinstance(result, str):
                failed[name] = result
            else:
                yield result

    with _open_partial(partial, run, out, replaces=in_place or overwrite, overwrite=overwrite) as file:
        records = file.complete(list(plan.wanted), compute, lambda done, total: track(done + len(failed), total))
        records = {name: select_categories(records[name], plan.wanted[name]) for name in plan.wanted if name in records}
        if in_place and hash_files([out]) != source.digest:  # a person has saved it while this ran
            source = read_annotations(out, source.root, category)
            states = make_plan(source, root, list(records), dict.fromkeys(fingerprints, ""), again=True)
            records = {name: select_categories(records[name], chosen) for name, chosen in states.wanted.items()}
        _write_coco(out, annotations, source, root, run, records, failed)
        shutil.rmtree(partial)
    return _summarise(out, source, records, failed, len(plan.kept))


def _open_source(
    annotations: Path, out: Path, images_root: Path | None, category: str | None, *, overwrite: bool
) -> Annotations:
    """The annotation file; or ``out``, if that is the result of an earlier run with it, with what was done since."""
    if not (overwrite or _same_file(annotations, out)) and _read_result(out).get(MADE_FROM) == hash_files(
        [annotations]
    ):
        return read_annotations(out, None, category)
    return read_annotations(annotations, images_root, category)


def _same_file(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()


def _read_result(path: Path) -> Mapping[str, Any]:
    """What a result says about the run that made it; empty if it is none."""
    try:
        data = read_json(path)
    except InputError:
        return {}
    info = data.get("info") if isinstance(data, dict) else None
    made = info.get(RESULT) if isinstance(info, dict) else None
    return made if isinstance(made, dict) else {}


# ---------------------------------------------------------------- prediction


class KeypointPropagator:
    """Photos → the keypoints of every category on each. The references are encoded once.

    Args:
        matcher: finds the points.
        references: their images are read here, and must fit their annotations.
        most: how many references of a category vote on each photo, those that look most like it; None: all.
        photos: images of references that are encoded already.
    """

    def __init__(
        self,
        matcher: Matcher,
        references: References,
        most: int | None = None,
        photos: Mapping[Path, EncodedPhoto] | None = None,
    ) -> None:
        self.matcher, self.references, self.most = matcher, references, most
        images = sorted({item.image for group in references.values() for item in group})
        few, known = len(images) <= MAX_KEPT, photos or {}
        self.photos: dict[Path, EncodedPhoto] = {
            image: known[image] if image in known else matcher.encode([image], keep_views=few)[0] for image in images
        }
        for group in references.values():
            for item in group:
                _check_reference(item, self.photos[item.image].size)

    def __call__(self, pixels: Sequence[UInt8[np.ndarray, "_ _ 3"]]) -> list[dict[str, KeypointEstimate]]:
        """The keypoints on each photo, by category. Where a match is mirrored, left and right are exchanged."""
        if not pixels:
            return []
        targets = self.matcher.encode(pixels, keep_views=True)
        estimates: list[dict[str, KeypointEstimate]] = [{} for _ in targets]
        for name, group in self.references.items():
            voters = [self._voters(group, photo) for photo in targets]
            votes: list[dict[int, Vote]] = [{} for _ in targets]
            for row, item in enumerate(group):
                if not (rows := [target for target, chosen in enumerate(voters) if row in chosen]):
                    continue
                photos = [targets[target] for target in rows]
                reference = self.photos[item.image]
                cast = cast_votes(self.matcher, reference, item.kps_px, item.visible, item.kp_names, photos)
                for target, vote in zip(rows, cast, strict=True):
                    votes[target][row] = vote
            for target, photo in enumerate(targets):
                estimates[target][name] = count_votes(votes[target], max(photo.size))
        return estimates

    def _voters(self, group: Sequence[AnnotatedObject], photo: EncodedPhoto) -> set[int]:
        """The indices of the references that vote on a photo."""
        photos, shown = [self.photos[item.image] for item in group], np.stack([item.visible for item in group])
        return choose_voters(photos, shown, photo, len(group) if self.most is None else self.most)


def _check_reference(item: AnnotatedObject, size: Size) -> None:
    where = f"{item.image}, annotation {item.id}"
    if item.image_size is not None and item.image_size != size:
        (h, w), (real_h, real_w) = item.image_size, size
        raise InputError(f"{where}: made for {w} × {h} pixels, but the image (turned upright) has {real_w} × {real_h}")
    check_points(item.kps_px[item.visible], size, where)


@dataclass(frozen=True)
class PhotosToPredict:
    """All that a worker needs to predict the keypoints of named photos."""

    matcher: Matcher
    device: str | None  # None: the matcher's
    references: References
    most_references: int | None
    root: Path  # that the names are relative to
    wanted: Names  # the categories of each photo
    threshold: float | None
    fingerprints: Mapping[str, str]
    batch: int
    threads: int

    def make_worker(self, _track: Track = ignore) -> Worker[str, tuple[str, Record | str]]:
        """Read and encode the references → what predicts photos."""
        matcher = self.matcher if self.device is None else self.matcher.to(self.device)
        return partial(self._predict, KeypointPropagator(matcher, self.references, self.most_references))

    def _predict(self, propagator: KeypointPropagator, names: Iterable[str]) -> Iterator[tuple[str, Record | str]]:
        """Photos → their records, or why they cannot be read. Several batches of decoded photos wait in memory."""
        decoded = prefetch(self._decode, names, ahead=2 * self.batch, threads=self.threads)
        for chunk in batched(decoded, self.batch):
            yield from ((name, photo) for name, photo in chunk if isinstance(photo, str))
            photos = {name: photo for name, photo in chunk if isinstance(photo, _DecodedPhoto)}
            found = propagator([photo.pixels for photo in photos.values()])
            for (name, photo), estimates in zip(photos.items(), found, strict=True):
                scale = np.divide(photo.size[::-1], photo.pixels.shape[1::-1])
                scaled = {key: replace(e, kps_px=e.kps_px * scale) for key, e in estimates.items()}
                chosen = {category: scaled[category] for category in self.wanted[name]}
                yield name, to_record(name, photo.size, chosen, self.references, self.threshold, self.fingerprints)

    def _decode(self, name: str) -> "tuple[str, _DecodedPhoto | str]":
        return name, _decode(self.root / name, self.matcher.config.image_size)


class _DecodedPhoto(NamedTuple):
    """The pixels of a photo, those of a large one in as much detail as crops can use, and its own size (h, w)."""

    pixels: UInt8[np.ndarray, "_ _ 3"]
    size: Size


def _decode(path: Path, image_size: Size) -> _DecodedPhoto | str:
    """A decoded photo, or why it cannot be read. Several batches of them wait in memory."""
    try:
        size = read_size(path)
        large = size[0] * size[1] > LARGE
        photo = read_reduced(path, round(DETAIL * max(image_size)), size[0] * size[1]) if large else path
        return _DecodedPhoto(to_pixels(photo), size)
    except Exception as error:  # decoders raise errors of many kinds, and one bad image must not end the run
        return printable(str(error) or type(error).__name__)


# ---------------------------------------------------------------- one run and its files


def _check_out(out: Path, run: Run, *, in_place: bool, overwrite: bool) -> Path:
    """The folder of unfinished results; InputError if it or ``out`` belongs to something else."""
    partial = out.with_name(f"{out.name}.partial")
    resumes = check_run_folder(partial, run, [RECORDS], way_out=WAY_OUT, overwrite=overwrite)
    _check_new(out, replaces=in_place or overwrite or resumes)
    return partial


def _check_new(out: Path, *, replaces: bool) -> None:
    """Raise an InputError if the file is there already, unless this run is to replace it."""
    if out.exists() and not replaces:
        continued = "; to continue it, with all that was corrected there, give it as the annotations, too"
        raise InputError(
            f"{out}: exists already{continued if _read_result(out) else ''}; choose another --out, or give --overwrite"
        )


@contextmanager
def _open_partial(partial: Path, run: Run, out: Path, *, replaces: bool, overwrite: bool) -> Iterator[LineFile[Record]]:
    with open_run_folder(partial, run, [RECORDS], way_out=WAY_OUT, overwrite=overwrite) as resumes:
        _check_new(out, replaces=replaces or resumes)  # another process may have finished since the first look
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


def _describe_settings(matcher: Matcher, threshold: float | None, most_references: int | None) -> dict[str, Any]:
    """All that predictions depend on, besides references and photos."""
    return {
        "threshold": threshold,
        "most_references": most_references,
        **matcher.describe(),
    }


def _describe_run(source: Annotations, images_root: str, category: str | None, settings: Mapping[str, Any]) -> Run:
    return Run(
        "propagate",
        {
            "annotations": hash_references(source.references),
            "references": hash_files(source.reference_images),
            "images_root": images_root,
            "category": category,
            **settings,
        },
    )


def _write_coco(
    out: Path,
    annotations: Path,
    source: Annotations,
    root: Path,
    run: Run,
    records: Mapping[str, Record],
    failed: Mapping[str, str],
) -> None:
    """Write the COCO-keypoint file: what was in it or in the annotation file, and the predictions."""
    coco = assemble(source, root, {root / name: record for name, record in records.items()})
    before = coco["info"] if isinstance(coco.get("info"), dict) else {}
    if _same_file(source.path, out):  # it may come from another file, which is then still the one to compare with
        made = {key: value for key, value in _read_result(out).items() if key in ("annotations", MADE_FROM)}
    else:
        made = {"annotations": relative(annotations, out.parent), MADE_FROM: source.digest}
    made |= {
        "version": __version__,
        "calibrated": run.arguments["calibration"] is not None,
        **{key: run.arguments[key] for key in ("category", "threshold", "most_references", "weights")},
        "failed": [{"file_name": name, "error": failed[name]} for name in sorted(failed)],
    }
    description = "annotations with predicted true are predictions of transformatcher; please check them"
    info = {"description": description, **before, "images_root": run.arguments["images_root"], RESULT: made}
    write_text(out, json.dumps({"info": info} | coco | {"info": info}, indent=1) + "\n")


def _summarise(
    out: Path, source: Annotations, records: Mapping[str, Record], failed: dict[str, str], kept: int
) -> PropagationSummary:
    notes = [note for record in records.values() for note in record["annotations"]]
    sizes = {name: len(group[0].kp_names) for name, group in source.references.items()}
    wanted = sum(sizes.get(name, 0) for record in records.values() for name in record[PREDICTED])
    found = sum(note["num_keypoints"] for note in notes)
    other_kind = [name for name, record in records.items() if record.get("same_kind", 1.0) < SAME_KIND_THRESHOLD]
    return PropagationSummary(
        str(out), len(records), len(notes), found, wanted - found, kept, other_kind, list(source.outside), failed
    )


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
