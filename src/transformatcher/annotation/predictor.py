"""References of a project → predictions on all photos that nobody has reviewed, a batch at a time.

The vote is that of ``propagate``. What is known already is kept: features on disk, votes in the project. So after a
correction, only the votes of the corrected reference are cast again.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import numpy as np

from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Category, Photo
from transformatcher.annotation.references import Reference, Region, find_references, fingerprint
from transformatcher.annotation.region_encoder import RegionEncoder
from transformatcher.annotation.revote import HeatMap, Revoting
from transformatcher.annotation.scan import identify_photo
from transformatcher.annotation.suggestion import Descriptors
from transformatcher.annotation.targets import Target, find_targets, in_order
from transformatcher.annotation.votes import (
    StoredVote,
    count_by_category,
    read_votes,
    vote_state,
    write_estimate,
    write_votes,
)
from transformatcher.config import to_plain
from transformatcher.inference.encoded_photo import EncodedPhoto
from transformatcher.inference.feature_store import FeatureStore
from transformatcher.inference.matcher import Matcher
from transformatcher.inference.propagate_voting import Vote, rank_voters, read_vote
from transformatcher.models.weights_io import hash_tensors
from transformatcher.run_folder import hash_json

MOST_REFERENCES = 6  # of a category that vote on an object, see docs/annotate.md
MOST_CATEGORIES = 3  # that are tried on a photo of which nobody has said what it shows
CACHE_BYTES = 4_000_000_000  # of features on disk, about 5 MB for each photo
MAX_READY = 12  # photos on the screen whose matched pairs are kept ready for moved points
MAX_READY_MEANWHILE = 4  # of them before all is predicted: the open photo and those that come next
RATE_WINDOW_S = 20.0


@dataclass(frozen=True)
class PredictionProgress:
    """How far the predictions are."""

    state: Literal["predicting", "idle", "no_references"]
    done: int
    total: int
    photos_per_second: float | None


@dataclass
class _Work:
    """What there is to do, as of a number of edits."""

    edits: int
    categories: dict[int, Category]
    references: dict[int, list[Reference]]  # by category
    waiting: list[Target]
    total: int
    unknown: list[Photo]  # photos without size, digest or descriptor
    marked: set[int]  # photos with references
    unmarked: set[int]  # photos that could be marked next
    fresh: dict[int, Target]  # by photo; those predicted already
    ready: set[int] = field(default_factory=set)  # photos on the screen whose matched pairs are in memory


class Predictor:
    """Predicts the keypoints of a project's photos.

    One thread calls :meth:`step` or :meth:`run`; all else may be called by any thread.

    Args:
        project: open for writing.
        matcher: finds the points.
        most_references: how many references of a category vote on an object; None: all.
        batch: objects at a time.
        cache_bytes: limit of the features on disk, beside the project's file; 0 keeps none.

    Example:
        >>> Predictor(project, Matcher.from_pretrained()).run()
    """

    def __init__(
        self,
        project: Project,
        matcher: Matcher,
        *,
        most_references: int | None = MOST_REFERENCES,
        batch: int = 4,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.project, self.matcher, self.batch, self.most = project, matcher, batch, most_references
        described = {
            "weights": hash_tensors(matcher.model.state_dict()),
            "config": to_plain(matcher.config),
            "calibration": asdict(matcher.calibration),
            "matching": [matcher.precision, matcher.try_mirrored],
        }
        self.model = hash_json(described)
        self.descriptors = Descriptors(project, self.model)
        store = FeatureStore(project.cache / "features" / self.model, cache_bytes)
        self.encoder = RegionEncoder(project, matcher, store, self.descriptors)
        self.revoting = Revoting(project, self.model)
        self.in_view: tuple[int, ...] = ()
        self.interrupted: Callable[[], None] = lambda: None  # called between parts of a batch; may wait
        self._work: _Work | None = None
        self._finished: deque[tuple[float, int]] = deque()  # batches of late: time, objects

    def step(self) -> bool:
        """Do a batch of what is left to do; False if nothing is."""
        work = self._look()
        if work.waiting:
            if work.waiting[0].photo_id in self.in_view or not self._make_ready(work, MAX_READY_MEANWHILE):
                self._predict(work)
            return True
        if work.unknown:
            self.encoder.describe(work.unknown[: self.batch])
            del work.unknown[: self.batch]
            return True
        self.descriptors.suggest(work.marked, work.unmarked)
        return self._make_ready(work)

    def run(self, track: Callable[[int, int], None] = lambda _done, _total: None) -> None:
        """Predict all that can be predicted; ``track`` is called with the numbers of objects done and in all."""
        while self.step():
            progress = self.progress()
            track(progress.done, progress.total)

    def close(self) -> None:
        """Stop the threads that decode photos."""
        self.encoder.close()

    def progress(self) -> PredictionProgress:
        """How far the predictions are, as of the last batch."""
        work = self._work
        if work is None or not work.references:
            return PredictionProgress("no_references", 0, 0, None)
        finished, rate = list(self._finished), None
        if len(finished) > 1 and time.monotonic() - finished[-1][0] < RATE_WINDOW_S:
            rate = sum(n for _, n in finished[1:]) / max(finished[-1][0] - finished[0][0], 1e-3)
        left = len(work.waiting)
        return PredictionProgress("predicting" if left else "idle", work.total - left, work.total, rate)

    def suggestion(self) -> int | None:
        """The photo whose marks would teach most; None if none is left to mark, or none is known yet."""
        return self.descriptors.suggestion

    def look_at(self, photo_ids: Iterable[int]) -> None:
        """These photos are on the screen: they come first, and :meth:`revote` is for them."""
        self.in_view = tuple(photo_ids)
        if (work := self._work) is not None:
            work.waiting = in_order(work.waiting, self.in_view)

    def revote(self) -> list[int]:
        """After a point of a reference was moved: see :meth:`Revoting.vote_again`."""
        return self.revoting.vote_again(self.in_view)

    def heatmap(self, instance_id: int, keypoint_id: int) -> HeatMap | None:
        """Where else a predicted keypoint may be: see :meth:`Revoting.heatmap`."""
        return self.revoting.heatmap(instance_id, keypoint_id)

    # ------------------------------------------------------------ what there is to do

    def _look(self) -> _Work:
        """What there is to do, read again after each edit."""
        work, edits = self._work, self.project.edits
        if work is not None and work.edits == edits:
            return work
        self._identify_references()
        with self.project.database.reading():
            self._work = self._read_work(edits)
        self.descriptors.suggest(self._work.marked, self._work.unmarked)
        return self._work

    def _read_work(self, edits: int) -> _Work:
        categories = {category.id: category for category in self.project.categories()}
        references: dict[int, list[Reference]] = {}
        for reference in find_references(self.project, list(categories.values())):
            references.setdefault(reference.category_id, []).append(reference)
        targets = find_targets(self.project, list(categories.values()), references, self.model)
        photos = [photo for photo in self.project.photos() if photo.problem is None]
        self.descriptors.forget(photo.id for photo in photos if photo.digest is None)
        described = self.descriptors.known()
        return _Work(
            edits,
            categories,
            references,
            in_order(targets, self.in_view),
            len(targets),
            [photo for photo in photos if photo.id not in described or photo.size is None],
            {reference.region.photo_id for group in references.values() for reference in group},
            {target.photo_id for target in targets} if references else {photo.id for photo in photos},
            {target.photo_id: target for target in targets if target.fresh},
        )

    def _identify_references(self) -> None:
        """Marks may be imported for photos that nobody has looked at yet."""
        rows = self.project.database.rows(
            """SELECT id FROM photo WHERE problem IS NULL AND (digest IS NULL OR width IS NULL) AND id IN
               (SELECT i.photo_id FROM instance i JOIN mark m ON m.instance_id = i.id)"""
        )
        for row in rows:
            identify_photo(self.project, self.project.photo(row["id"]))

    # ------------------------------------------------------------ one batch

    def _predict(self, work: _Work) -> None:
        """Predict the next batch of targets."""
        batch = work.waiting[: self.batch]
        self.encoder.decode_ahead(work.waiting[: 2 * self.batch])
        regions = {target: region for target in batch if (region := self.encoder.region(target)) is not None}
        photos = self.encoder.encode(list(regions.values()))
        regions = {target: region for target, region in regions.items() if region.key in photos}
        voters = {target: self._voters(target, photos[region.key], work) for target, region in regions.items()}
        votes = {t: {} if t.instance_id is None else read_votes(self.project, t.instance_id) for t in regions}
        missing: dict[Reference, list[Target]] = {}
        for target, chosen in voters.items():
            for reference in chosen:
                state = vote_state(self.model, reference, regions[target])
                if votes[target].get(reference.id, ("",))[0] != state:
                    missing.setdefault(reference, []).append(target)
        for reference, targets in missing.items():
            self.interrupted()
            names = work.categories[reference.category_id].names
            for target, vote in self._cast(
                reference, names, {t: (regions[t], photos[regions[t].key]) for t in targets}
            ):
                votes[target][reference.id] = vote
        self.interrupted()
        with self.project.changing(computed=True) as touched:
            if self.project.categories() != list(work.categories.values()):
                return  # keypoints were changed meanwhile; the next step reads all again
            for target, region in regions.items():
                instance_id = self._store(work, target, region, voters[target], votes[target])
                if instance_id is not None:
                    touched.add(target.photo_id)
                    work.fresh[target.photo_id] = replace(target, instance_id=instance_id, fresh=True)
        done = set(batch)
        work.waiting = [target for target in work.waiting if target not in done]
        self._finished.append((time.monotonic(), len(regions)))
        while self._finished[0][0] < time.monotonic() - RATE_WINDOW_S:
            self._finished.popleft()

    def _make_ready(self, work: _Work, most: int = MAX_READY) -> bool:
        """Match a photo on the screen once more, so that it can follow moved points at once; False if all are ready."""
        for photo_id in self.in_view[:most]:
            target = work.fresh.get(photo_id)
            if target is None or target.instance_id is None or photo_id in work.ready:
                continue
            work.ready.add(photo_id)
            region = self.encoder.region(target)
            photo = None if region is None else self.encoder.encode([region]).get(region.key)
            if region is None or photo is None:
                continue
            for reference in self._voters(target, photo, work):
                if not self.revoting.knows(reference, target.instance_id):
                    self.interrupted()
                    names = work.categories[reference.category_id].names
                    deque(self._cast(reference, names, {target: (region, photo)}), maxlen=0)
            return True
        return False

    def _voters(self, target: Target, photo: EncodedPhoto, work: _Work) -> list[Reference]:
        """The references that vote on a target: of each likely category those that look most like it."""
        groups = target.references(work.references)
        similarity = {category: np.array(self.encoder.similarity(group, photo)) for category, group in groups.items()}
        likely = sorted(groups, key=lambda category: -similarity[category].max())[:MOST_CATEGORIES]
        chosen: list[Reference] = []
        for category in likely:
            group = groups[category]
            if self.most is None or self.most >= len(group):
                chosen += group
            else:
                shown = np.stack([reference.visible for reference in group])
                chosen += [group[row] for row in sorted(rank_voters(similarity[category], shown, self.most))]
        return chosen

    def _cast(
        self, reference: Reference, names: Sequence[str], targets: Mapping[Target, tuple[Region, EncodedPhoto]]
    ) -> Iterable[tuple[Target, StoredVote]]:
        """Match a reference with photos in one batch; the matched pairs of photos on the screen are remembered."""
        source = self.encoder.encode_reference(reference)
        if source is None:
            return
        photos = [photo for _, photo in targets.values()]
        found = self.matcher.match_many(source, photos, reference.kps_px[reference.visible], batch=len(photos))
        for (target, (region, _)), matches in zip(targets.items(), found, strict=True):
            vote = read_vote(matches, reference.visible, names)
            state = vote_state(self.model, reference, region)
            yield target, (state, replace(vote, kps_px=vote.kps_px + region.offset))
            if target.photo_id in self.in_view and target.instance_id is not None:
                self.revoting.remember(reference, target.instance_id, region, matches.pair)

    def _store(
        self,
        work: _Work,
        target: Target,
        region: Region,
        voters: Sequence[Reference],
        votes: Mapping[int, StoredVote],
    ) -> int | None:
        """Write votes and what comes of them, inside a transaction → the object; None if it is not to be predicted."""
        cast: dict[int, Vote] = {reference.id: votes[reference.id][1] for reference in voters if reference.id in votes}
        instance_id = self._instance_of(target, voters[0].category_id) if cast else None
        if instance_id is None:
            return None
        estimates = count_by_category(voters, cast, region.size)
        best = max(estimates, key=lambda category: estimates[category].same_kind or 0.0)
        if target.category_id is None:
            self.project.database.run("UPDATE instance SET category_id = ? WHERE id = ?", best, instance_id)
        write_votes(self.project, instance_id, {number: votes[number] for number in cast})
        groups = work.references.values() if target.category_id is None else [work.references[best]]
        stamp = fingerprint(self.model, [reference for group in groups for reference in group])
        write_estimate(self.project, instance_id, work.categories[best], region.size, estimates[best], stamp)
        return instance_id

    def _instance_of(self, target: Target, category_id: int) -> int | None:
        """The object of a target if it is still there and not reviewed; a new one where there was none."""
        row = self.project.database.row
        if target.instance_id is not None:
            found = row("SELECT id FROM instance WHERE id = ? AND reviewed_at IS NULL", target.instance_id)
            return None if found is None else target.instance_id
        if row("SELECT 1 FROM photo WHERE id = ? AND NOT skipped", target.photo_id) is None:
            return None
        if row("SELECT 1 FROM instance WHERE photo_id = ?", target.photo_id) is not None:
            return None
        return self.project.database.run(
            "INSERT INTO instance (photo_id, category_id, automatic) VALUES (?, ?, 1)", target.photo_id, category_id
        )
