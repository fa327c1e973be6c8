"""References of several kinds of things → PCK of propagated keypoints against the number of references for each photo.

Usage: python docs/make/references.py PF-PASCAL. In each category of PF-PASCAL val, at most twelve photos are references
for at most eight that are in no training pair. Every reference is matched with every photo once; each row then lets
some of them vote.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.progress import track

from transformatcher import Matcher
from transformatcher.data.benchmarks import load_benchmark
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.propagate_voting import choose_voters, vote_keypoints

MOST, TARGETS = 12, 8  # references and targets of a category
ALPHAS = (0.05, 0.1)
KEYPOINTS = range(40)  # no category has more
Keypoints = dict[int, np.ndarray]  # keypoint → (x, y)


def main(root: Path) -> None:
    """Print a table of PCK @ 0.05 / 0.1 (of the object's box)."""
    photos: dict[str, dict[Path, Keypoints]] = defaultdict(lambda: defaultdict(dict))
    boxes: dict[Path, np.ndarray] = {}
    trained = {image for pair in load_benchmark("pfpascal", root, "trn") for image in (pair.src_image, pair.trg_image)}
    for pair in load_benchmark("pfpascal", root, "val"):
        for image, points in ((pair.src_image, pair.src_kps_px), (pair.trg_image, pair.trg_kps_px)):
            photos[pair.category][image] |= {k: points[k] for k in np.flatnonzero(pair.visible).tolist()}
        boxes[pair.trg_image] = pair.trg_bbox_px
    matcher = Matcher.from_pretrained(device="cpu", try_mirrored=False)
    rows: dict[str, list[list[float]]] = defaultdict(list)  # of each photo
    for marks in track(list(photos.values())):
        images = sorted(marks, key=lambda image: (image not in trained, image))
        half = min(MOST, len(images) // 2)
        references = images[:half]
        targets = [image for image in images[half:] if image in boxes and image not in trained][:TARGETS]
        if not targets:
            continue
        encoded = {image: matcher.encode([image])[0] for image in [*references, *targets]}
        predicted = {
            (reference, target): match
            for reference in references
            for target, match in zip(targets, _match(matcher, encoded, reference, marks, targets), strict=True)
        }
        shown = np.array([[k in marks[reference] for k in KEYPOINTS] for reference in references])
        for target in targets:
            for name in ("1", "2", "3", "4", "6", "all"):
                k = half if name == "all" else int(name)
                if half == MOST:
                    similar = choose_voters([encoded[r] for r in references], shown, encoded[target], k)
                    drawn = np.random.default_rng(0).permutation(half)[:k].tolist()
                    for how, voters in (("most similar", similar), ("at random", drawn)):
                        matches = [predicted[references[i], target] for i in voters]
                        known = marks[target].keys() & {k for reference in references for k in marks[reference]}
                        truth = {k: marks[target][k] for k in known}
                        rows[f"{name} {how}"].append(_score(matches, truth, boxes[target], max(encoded[target].size)))
    for name, scores in rows.items():
        means = " / ".join(f"{100 * value:.1f}" for value in np.mean(scores, axis=0))
        print(f"{name:20s} {means}   {len(scores)} photos")


def _match(
    matcher: Matcher, encoded: dict[Path, EncodedPhoto], reference: Path, marks: dict[Path, Keypoints], targets: list
) -> list[dict[int, tuple[np.ndarray, float]]]:
    points = marks[reference]
    found = matcher.match_many(encoded[reference], [encoded[t] for t in targets], np.array(list(points.values())))
    return [
        dict(zip(points, zip(matches.keypoints1, matches.confidence.tolist(), strict=True), strict=True))
        for matches in found
    ]


def _score(
    matches: list[dict[int, tuple[np.ndarray, float]]], truth: Keypoints, box: np.ndarray, side: int
) -> list[float]:
    """The shares of the true keypoints that the vote finds; one that no voter shows is wrong."""
    found = _vote(matches, side)
    errors = np.array([np.linalg.norm(found[k] - xy) if k in found else np.inf for k, xy in truth.items()])
    longer = max(box[2] - box[0], box[3] - box[1])
    return [float(np.mean(errors <= alpha * longer)) for alpha in ALPHAS]


def _vote(matches: list[dict[int, tuple[np.ndarray, float]]], side: int) -> Keypoints:
    names = sorted({k for match in matches for k in match})
    kps_px, confidence = np.zeros((len(matches), len(names), 2)), np.zeros((len(matches), len(names)))
    for row, match in enumerate(matches):
        for column, name in enumerate(names):
            if name in match:
                kps_px[row, column], confidence[row, column] = match[name]
    return dict(zip(names, vote_keypoints(kps_px, confidence, side).kps_px, strict=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
