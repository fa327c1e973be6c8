"""Any sequence of edits, with a predictor that writes in between, can be undone and done again, across restarts."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from helpers.edited_project import add_automatic, check_whole, open_project, predict, said
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from transformatcher.annotation import edits
from transformatcher.annotation.project import Project
from transformatcher.annotation.scan import scan_photos

N_PHOTOS = 3
photos = st.integers(1, N_PHOTOS)
few = st.integers(0, 5)
boxes = st.sampled_from([None, (0.0, 0.0, 40.0, 40.0), (5.0, 5.0, 70.0, 55.0)])


class Undoing(RuleBasedStateMachine):
    """A person, a predictor and restarts, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.project = open_project(self.folder, N_PHOTOS)
        self.hurry()
        self.states: list[dict[str, Any]] = [said(self.project)]  # after each action that counts
        self.names = 0

    def teardown(self) -> None:
        self.undo_and_redo_everything()
        self.project.close()
        shutil.rmtree(self.folder)

    def hurry(self) -> None:
        """Do not wait for the disk: it is not what is tested here."""
        self.project.database.rows("PRAGMA synchronous = OFF")

    # ------------------------------------------------------------ the person

    def did(self) -> None:
        """Remember the state after an edit; one that changed nothing is no action."""
        actions = self.project.database.rows("SELECT 1 FROM action WHERE state = 'done'")
        if len(actions) > len(self.states) - 1:
            self.states.append(said(self.project))
        assert said(self.project) == self.states[-1]

    def a_category(self, number: int) -> int | None:
        found = self.project.categories()
        return found[number % len(found)].id if found else None

    def an_instance(self, number: int) -> int | None:
        found = self.project.instances()
        return found[number % len(found)].id if found else None

    @initialize()
    def begin(self) -> None:
        for _ in range(2):
            self.add_category(3)
        self.predict(0, 0)

    @rule(n_keypoints=few)
    def add_category(self, n_keypoints: int) -> None:
        self.names += 1
        names = ["left a", "right a", "b", "c", "d"][:n_keypoints]
        edges = [(0, n_keypoints - 1)] if n_keypoints > 1 else []
        edits.add_category(self.project, f"category {self.names}", names, edges)
        self.did()

    @rule(which=few, drop=few, add=st.booleans(), rename=st.booleans())
    def change_category(self, which: int, drop: int, add: bool, rename: bool) -> None:
        if (category_id := self.a_category(which)) is None:
            return
        category = self.project.category(category_id)
        self.names += 1
        kept: list[tuple[int | None, str]] = [(k.id, k.name) for i, k in enumerate(category.keypoints) if i != drop]
        new: list[tuple[int | None, str]] = [(None, f"new {self.names}")] if add else []
        name = f"category {self.names}" if rename else category.name
        edges = [(0, 1)] if len(kept + new) > 1 else []
        edits.change_category(self.project, category_id, name, [*new, *kept], edges)
        self.did()

    @rule(photo_id=photos, which=few, box=boxes)
    def add_instance(self, photo_id: int, which: int, box: Any) -> None:
        if (category_id := self.a_category(which)) is not None:
            edits.add_instance(self.project, photo_id, category_id, box)
            self.did()

    @rule(which=few, box=boxes)
    def change_box(self, which: int, box: Any) -> None:
        if (instance_id := self.an_instance(which)) is not None:
            edits.change_box(self.project, instance_id, box)
            self.did()

    @rule(which=few)
    def remove_instance(self, which: int) -> None:
        if (instance_id := self.an_instance(which)) is not None:
            edits.remove_instance(self.project, instance_id)
            self.did()

    @rule(which=few, keypoint=few, visibility=st.sampled_from([0, 1, 2]), x=st.integers(0, 80))
    def set_mark(self, which: int, keypoint: int, visibility: Any, x: int) -> None:
        if (instance_id := self.an_instance(which)) is None:
            return
        points = self.project.category(self.project.instance(instance_id).category_id).keypoints
        if points:
            edits.set_mark(self.project, instance_id, points[keypoint % len(points)].id, visibility, (float(x), 7.0))
            self.did()

    @rule(which=few)
    def remove_mark(self, which: int) -> None:
        marked = [(i.id, k) for i in self.project.instances() for k in i.marks]
        if marked:
            edits.remove_mark(self.project, *marked[which % len(marked)])
            self.did()

    @rule(photo_id=photos)
    def accept(self, photo_id: int) -> None:
        if self.project.instances([photo_id]):
            edits.accept(self.project, photo_id)
            self.did()

    @rule(photo_id=photos)
    def reopen_photo(self, photo_id: int) -> None:
        edits.reopen(self.project, photo_id)
        self.did()

    @rule(photo_id=photos, skipped=st.booleans())
    def skip(self, photo_id: int, skipped: bool) -> None:
        edits.skip(self.project, photo_id, skipped=skipped)
        self.did()

    # ------------------------------------------------------------ undo and redo, to and fro

    @rule(times=st.integers(1, 4))
    def undo_and_redo(self, times: int) -> None:
        done = len(self.states) - 1
        for step in range(1, min(times, done) + 1):
            assert self.project.undo() is not None
            assert said(self.project) == self.states[done - step]
            self.predict(step, step)
        for step in range(min(times, done) - 1, -1, -1):
            assert self.project.redo() is not None
            assert said(self.project) == self.states[done - step]
            self.predict(step, step)

    @rule()
    def undo_for_good(self) -> None:
        """The next edit goes on from there."""
        if len(self.states) > 1:
            assert self.project.undo() is not None
            self.states.pop()
            assert said(self.project) == self.states[-1]

    def undo_and_redo_everything(self) -> None:
        last = said(self.project)
        for state in reversed(self.states[:-1]):
            self.predict(1, 1)
            assert self.project.undo() is not None
            assert said(self.project) == state
            check_whole(self.project)
        assert self.project.undo() is None
        self.restart()
        for state in self.states[1:]:
            assert self.project.redo() is not None
            assert said(self.project) == state
            check_whole(self.project)
            self.predict(2, 0)
        assert said(self.project) == last

    # ------------------------------------------------------------ the program

    @rule(category=few, reference=few)
    def predict(self, category: int, reference: int) -> None:
        """An object for each photo without any; another category where nobody has marked it; points for all."""
        if (category_id := self.a_category(category)) is None:
            return
        for photo in self.project.photos():
            objects = self.project.instances([photo.id])
            if not objects and not photo.skipped:
                add_automatic(self.project, photo.id, category_id)
            elif len(objects) == 1 and objects[0].box is None and not objects[0].marks and not objects[0].reviewed:
                with self.project.changing([photo.id], computed=True):
                    self.project.forget_predictions([objects[0].id])
                    self.project.database.run(
                        "UPDATE instance SET category_id = ? WHERE id = ?", category_id, objects[0].id
                    )
        for instance in self.project.instances():
            if not instance.reviewed:
                predict(self.project, instance.id, 0.9, self.an_instance(reference))

    @rule()
    def restart(self) -> None:
        self.project.close()
        self.project = Project(self.folder)
        self.hurry()

    @rule(photo_id=photos)
    def move_photo(self, photo_id: int) -> None:
        path = self.project.path_of(self.project.photo(photo_id))
        self.names += 1
        path.rename(path.with_name(f"{self.names}-{photo_id}.png"))
        assert len(scan_photos(self.project).moved) == 1
        assert said(self.project) == self.states[-1]

    @invariant()
    def is_whole(self) -> None:
        check_whole(self.project)

    @invariant()
    def summaries_are_those_of_the_database(self) -> None:
        remembered = self.project.summaries()
        with self.project.database.transaction():
            assert self.project.summaries() == remembered


Undoing.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestUndoing = Undoing.TestCase
