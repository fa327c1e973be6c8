"""Arguments of ``transformatcher propagate`` with a project of ``transformatcher annotate`` → predictions in it."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transformatcher.annotation.edits import forget_predictions
from transformatcher.annotation.predictor import Predictor
from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Category, Instance
from transformatcher.annotation.scan import scan_photos
from transformatcher.cli.inputs import set_threads
from transformatcher.cli.model_args import load_matcher
from transformatcher.cli.output import progress_bar
from transformatcher.cli.propagate import NOTHING_DRAWN, PROJECT_SUFFIX
from transformatcher.errors import InputError, printable
from transformatcher.inference.calibration import MATCH_THRESHOLD, SAME_KIND_THRESHOLD
from transformatcher.inference.propagate_draw import OTHER_KIND
from transformatcher.viz.contact_sheet import PredictedObject, PredictedPhoto, draw_contact_sheets

if TYPE_CHECKING:
    from transformatcher.inference.matcher import Matcher

UNSUITABLE = ("category", "threshold")  # options that a project has no use for


def propagate_project(args: argparse.Namespace) -> int:
    """Predict the photos of a project; 1 if some of them could not be read.

    With ANNOTATIONS.json and --out PROJECT.sqlite, the annotations are taken over as marks first. With a project and
    --out OUT.json, marks and predictions are written there at the end.
    """
    file, imported, exported = _check_files(args)
    folder = _check_folder(args.images)
    set_threads(args.threads)
    matcher, _ = load_matcher(args)
    with Project(folder, file) as project:
        scan_photos(project)
        if imported is not None:
            from transformatcher.annotation.formats.coco_import import import_coco

            root = Path(args.images_root) if args.images_root else None
            for problem in import_coco(project, imported, images_root=root).skipped:
                print(f"left out: {printable(problem)}", file=sys.stderr)
        if args.predict_again:
            forget_predictions(project, [item.id for item in project.instances() if not item.reviewed])
        _predict(project, matcher, args)
        photos = _predicted_photos(project, calibrated=matcher.calibrated)
        if exported is not None:
            from transformatcher.annotation.formats.export import export_project

            threshold = MATCH_THRESHOLD if matcher.calibrated else 0.0
            export_project(project, "coco", exported, predictions="include", threshold=threshold)
        failed = {photo.path: photo.problem for photo in project.photos() if photo.problem}
    pictures = []
    if args.draw is not None:
        pictures = draw_contact_sheets(photos, Path(args.draw), calibrated=matcher.calibrated)
    summary = _summarise(file, photos, failed) | {"out": None if exported is None else str(exported)}
    if args.json:
        print(json.dumps(summary | {"pictures": [str(picture) for picture in pictures]}, indent=2))
    else:
        lost = f", {summary['no_match']} without a match" if summary["no_match"] else ""
        print(f"{summary['keypoints']} keypoints on {summary['images']} images{lost}\nproject: {printable(file)}")
        if exported is not None:
            print(f"annotations: {printable(exported)}")
        if summary["other_kind"]:
            print(f"probably another kind of thing: {printable(', '.join(summary['other_kind']))}")
        for picture in pictures:
            print(f"picture: {printable(picture)}")
    if args.draw is not None and not pictures:
        print(NOTHING_DRAWN, file=sys.stderr)
    for name, problem in failed.items():
        print(f"left out: {printable(f'{name}: {problem}')}", file=sys.stderr)
    return 1 if failed else 0


def _check_files(args: argparse.Namespace) -> tuple[Path, Path | None, Path | None]:
    """The project; a COCO file to be taken over, or None; a COCO file to be written, or None."""
    for option in UNSUITABLE:
        if getattr(args, option) is not None:
            raise InputError(f"--{option.replace('_', '-')}: of no use with a project ({PROJECT_SUFFIX}); leave it out")
    if args.engine != "local":
        raise InputError(f"--engine {args.engine}: a project ({PROJECT_SUFFIX}) is predicted by this process alone")
    given, out = Path(args.annotations), None if args.out is None else Path(args.out)
    if given.suffix.lower() != PROJECT_SUFFIX:
        if args.overwrite:
            raise InputError("--overwrite: a project is never replaced; to predict again, give --predict-again")
        assert out is not None
        return out, given, None
    if args.images_root is not None:
        raise InputError("--images-root: of no use with the marks of a project; leave it out")
    if not given.is_file():
        raise InputError(f"{given}: no such project; transformatcher annotate FOLDER makes one")
    if out is None or out.resolve() == given.resolve():
        if args.overwrite:
            raise InputError("--overwrite: a project is never replaced; to predict again, give --predict-again")
        return given, None, None
    if out.suffix.lower() != ".json":
        raise InputError(f"--out {out}: a project is written to a COCO-keypoint file, its name ends in .json")
    if out.exists() and not args.overwrite:
        raise InputError(f"{out}: exists already; choose another --out, or give --overwrite")
    return given, None, out


def _check_folder(images: Sequence[str]) -> Path:
    """The one folder of a project's photos."""
    if len(images) != 1 or not Path(images[0]).is_dir():
        raise InputError(
            f"{', '.join(images)}: with a project, IMAGES is one folder, that of its photos; all in it are predicted"
        )
    return Path(images[0])


def _predict(project: Project, matcher: "Matcher", args: argparse.Namespace) -> None:
    predictor = Predictor(project, matcher, most_references=args.references, batch=args.batch)
    try:
        with progress_bar("predicting", "objects") as track:
            predictor.run(track)
    finally:
        predictor.close()
    if predictor.progress().state == "no_references":
        raise InputError(f"{project.file}: no keypoint is marked yet, so there is nothing to propagate")


def _predicted_photos(project: Project, *, calibrated: bool) -> list[PredictedPhoto]:
    """The photos with predictions that nobody has reviewed, marked or replaced by a mark."""
    categories = {category.id: category for category in project.categories()}
    by_photo: dict[int, list[Instance]] = {}
    for item in project.instances():
        if not item.reviewed and item.predictions.keys() - item.marks.keys():
            by_photo.setdefault(item.photo_id, []).append(item)
    photos = []
    for photo in project.photos():
        if photo.problem is None and photo.size is not None and (items := by_photo.get(photo.id)):
            objects = [_predicted_object(item, categories[item.category_id], calibrated=calibrated) for item in items]
            best = max((item.same_kind for item in items if item.same_kind is not None), default=1.0)
            notes = [OTHER_KIND] if best < SAME_KIND_THRESHOLD else []
            photos.append(PredictedPhoto(project.path_of(photo), photo.path, photo.size, objects, notes))
    return photos


def _predicted_object(item: Instance, category: Category, *, calibrated: bool) -> PredictedObject:
    """The predicted keypoints of an object; those that a person has set count as found, with confidence 1."""
    n = len(category.keypoints)
    kps_px, confidence, found = np.zeros((n, 2)), np.zeros(n), np.zeros(n, dtype=bool)
    for row, keypoint in enumerate(category.keypoints):
        mark, prediction = item.marks.get(keypoint.id), item.predictions.get(keypoint.id)
        if mark is not None:
            confidence[row], found[row] = 1.0, mark.xy is not None
            kps_px[row] = mark.xy or (0, 0)
        elif prediction is not None:
            kps_px[row], confidence[row] = prediction.xy, prediction.confidence
            found[row] = prediction.confidence >= MATCH_THRESHOLD or not calibrated
    edges = [(category.position(a), category.position(b)) for a, b in category.skeleton]
    return PredictedObject(category.name, category.names, kps_px, confidence, found, edges)


def _summarise(file: Path, photos: Sequence[PredictedPhoto], failed: Mapping[str, str]) -> dict[str, Any]:
    return {
        "project": str(file),
        "images": len(photos),
        "annotations": sum(len(photo.objects) for photo in photos),
        "keypoints": sum(int(item.found.sum()) for photo in photos for item in photo.objects),
        "no_match": sum(photo.missing for photo in photos),
        "other_kind": [photo.name for photo in photos if OTHER_KIND in photo.notes],
        "failed": dict(failed),
    }
