"""Photos with known keypoints → weights of the confidence of a vote, and how well that confidence holds.

Usage: python docs/make/vote_confidence.py FOLDER, in COCO's layout. In each category, twelve photos are references for
at most sixteen others. The first 1, 2, 3, 6 or 12 of them are given, and six of these vote at most. The weights in the
package are those that it prints for VOC-Keypoints.
"""

import sys
from pathlib import Path

import numpy as np
from rich.progress import track
from scipy.optimize import minimize

from transformatcher import Matcher
from transformatcher.annotation.known_photos import KnownPhoto, choose_photos
from transformatcher.data.coco_keypoints import load_coco
from transformatcher.errors import InputError
from transformatcher.evaluation.reliability import reliability, roc
from transformatcher.inference.propagate_voting import (
    RIVAL_WEIGHT,
    SHARE_WEIGHT,
    USUAL_PART,
    Vote,
    cast_votes,
    choose_voters,
    vote_cues,
    vote_keypoints,
)

GIVEN = (1, 2, 3, 6, 12)
VOTERS, TARGETS, SMALLEST = 6, 16, 8  # references that vote; photos of a category, at most and at least
TOLERANCE = 0.1  # of the longer side of the object's box
RIGHT, BEST, VOTED = 0, 1, 2  # columns: right or not; confidence of the chosen reference; of the vote. Then the cues.


def main(root: Path) -> None:
    """Print the weights, and a line for each number of references."""
    objects = load_coco(root)
    matcher = Matcher.from_pretrained(device="cpu")
    found: dict[int, list[np.ndarray]] = {given: [] for given in GIVEN}
    for category in track(sorted({item.category for item in objects})):
        try:
            photos = choose_photos(objects, category, GIVEN[-1] + TARGETS)
        except InputError:  # there are too few
            continue
        if len(photos) >= GIVEN[-1] + SMALLEST:
            for given, rows in judge(matcher, photos).items():
                found[given].append(rows)
    rows = {given: np.concatenate(tables) for given, tables in found.items()}
    every = np.concatenate([table for given, table in rows.items() if given > 1])
    share, rival = fit(every)
    print(f"fitted: SHARE_WEIGHT {share:.2f}, RIVAL_WEIGHT {rival:.2f} (in use: {SHARE_WEIGHT}, {RIVAL_WEIGHT}, "
          f"USUAL_PART {USUAL_PART})")  # fmt: skip
    print("references | keypoints | right | best reference: calibration error, AUC | vote: calibration error, AUC")
    for given, table in rows.items():
        right = table[:, RIGHT] > 0
        columns = [
            f"{reliability(table[:, c], right).error:.3f}, {roc(table[:, c], right).area:.3f}" for c in (BEST, VOTED)
        ]
        print(" | ".join([str(given), str(len(table)), f"{right.mean():.1%}", *columns]))


def judge(matcher: Matcher, photos: list[KnownPhoto]) -> dict[int, np.ndarray]:
    """Predict photos of a category from the first ones → a row for each predicted keypoint, by references given."""
    references, targets = photos[: GIVEN[-1]], photos[GIVEN[-1] :]
    encoded = [matcher.encode([photo.image])[0] for photo in photos]
    shown = np.array([photo.objects[0].visible for photo in references])
    cast = [  # by reference and target
        cast_votes(matcher, source, item.kps_px, item.visible, item.kp_names, encoded[len(references) :])
        for source, item in ((encoded[i], photo.objects[0]) for i, photo in enumerate(references))
    ]
    rows: dict[int, list[np.ndarray]] = {given: [] for given in GIVEN}
    for number, target in enumerate(targets):
        photo = encoded[len(references) + number]
        for given in GIVEN:
            voters = sorted(choose_voters(encoded[:given], shown[:given], photo, VOTERS))
            rows[given].append(compare([cast[i][number] for i in voters], target, max(photo.pixels.shape[:2])))
    return {given: np.concatenate(tables) for given, tables in rows.items()}


def compare(votes: list[Vote], target: KnownPhoto, side_px: int) -> np.ndarray:
    """One vote beside the truth."""
    item = target.objects[0]
    assert item.bbox_px is not None
    x0, y0, x1, y1 = item.bbox_px
    kps_px, confidence = np.stack([vote.kps_px for vote in votes]), np.stack([vote.confidence for vote in votes])
    estimate = vote_keypoints(kps_px, confidence, side_px)
    distance = np.linalg.norm(estimate.kps_px - item.kps_px, axis=1) / max(x1 - x0, y1 - y0)
    right = item.visible & (distance <= TOLERANCE)
    best = confidence[estimate.chosen, np.arange(len(right))]
    table = np.stack(
        [right, best, estimate.confidence, *vote_cues(kps_px, confidence, estimate.kps_px, side_px)], axis=1
    )
    return table[best > 0]


def fit(table: np.ndarray) -> np.ndarray:
    """The weights of the second and the third cue by maximum likelihood, with that of the first fixed at 1."""
    sign, cues = 2 * table[:, RIGHT] - 1, table[:, VOTED + 1 :]
    weights: np.ndarray = minimize(
        lambda w: np.logaddexp(0, -sign * (cues[:, 0] + cues[:, 1:] @ w)).sum(), np.zeros(2)
    ).x
    return weights


if __name__ == "__main__":
    main(Path(sys.argv[1]))
