"""Votes of references on objects ↔ the project's tables; votes → predictions."""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from transformatcher.annotation.journal import now
from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Category
from transformatcher.annotation.references import Reference, Region
from transformatcher.inference.propagate_voting import KeypointEstimate, Vote, count_votes
from transformatcher.run_folder import hash_json
from transformatcher.schema import Size

StoredVote = tuple[str, Vote]  # what it depends on, see vote_state; the keypoints are in pixels of the whole photo

NO_STAMP = ""  # of a prediction that is to be made anew


def vote_state(model: str, reference: Reference, region: Region) -> str:
    """Changes with all that a vote depends on; a stored vote of another state is out of date."""
    return hash_json([model, reference.state, region.key])


def read_votes(project: Project, instance_id: int) -> dict[int, StoredVote]:
    """The stored votes on an object by the id of the reference, keypoints in the order of its category."""
    known = {}
    for row in project.database.rows("SELECT * FROM vote WHERE instance_id = ?", instance_id):
        points = np.frombuffer(row["points"], dtype=np.float64).reshape(-1, 3)
        vote = Vote(points[:, :2].copy(), points[:, 2].copy(), bool(row["mirrored"]), row["same_kind"])
        known[row["reference_id"]] = row["state"], vote
    return known


def write_votes(project: Project, instance_id: int, votes: Mapping[int, StoredVote]) -> None:
    """Keep votes on an object, inside a transaction. Votes of references that are gone by now are left out."""
    query = "SELECT id FROM instance WHERE id IN (SELECT value FROM json_each(?))"
    there = {row["id"] for row in project.database.rows(query, json.dumps(list(votes)))}
    project.database.run_many(
        "INSERT OR REPLACE INTO vote (instance_id, reference_id, state, points, same_kind, mirrored) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        [
            (instance_id, reference_id, state, _to_blob(vote), vote.same_kind, int(vote.mirrored))
            for reference_id, (state, vote) in votes.items()
            if reference_id in there
        ],
    )


def count_by_category(
    references: Sequence[Reference], votes: Mapping[int, Vote], size: Size
) -> dict[int, KeypointEstimate]:
    """The votes of references of several categories → an estimate for each category that has votes.

    ``chosen`` and ``mirrored`` of the estimates are ids of references.
    """
    groups: dict[int, dict[int, Vote]] = {}
    for reference in references:
        if reference.id in votes:
            groups.setdefault(reference.category_id, {})[reference.id] = votes[reference.id]
    return {category: count_votes(cast, max(size)) for category, cast in groups.items()}


def write_estimate(
    project: Project, instance_id: int, category: Category, size: Size, estimate: KeypointEstimate, stamp: str
) -> None:
    """Replace the prediction of an object, inside a transaction.

    Args:
        project: to be changed.
        instance_id: of the object.
        category: its category.
        size: (h, w) of its photo.
        estimate: see :func:`count_by_category`.
        stamp: names the references that it was made from; see :func:`find_targets`.
    """
    h, w = size
    kps_px = estimate.kps_px.clip(0, (w, h)).round(2).tolist()
    chosen, mirrored = estimate.chosen.tolist(), set(estimate.mirrored)
    project.database.run("DELETE FROM prediction WHERE instance_id = ?", instance_id)
    project.database.run_many(
        "INSERT INTO prediction (instance_id, keypoint_id, x, y, confidence, reference, mirrored) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (instance_id, keypoint.id, *kps_px[row], round(confidence, 4), chosen[row], int(chosen[row] in mirrored))
            for row, (keypoint, confidence) in enumerate(
                zip(category.keypoints, estimate.confidence.tolist(), strict=True)
            )
            if confidence > 0
        ],
    )
    project.database.run(
        "INSERT OR REPLACE INTO predicted (instance_id, voters, same_kind, at) VALUES (?, ?, ?, ?)",
        instance_id, stamp, estimate.same_kind, now(),
    )  # fmt: skip


def _to_blob(vote: Vote) -> bytes:
    return np.concatenate([vote.kps_px, vote.confidence[:, None]], axis=1).astype(np.float64).tobytes()
