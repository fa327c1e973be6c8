"""What a person does to a project: each edit, what it refuses, and that it can be undone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.edited_project import SIZE, add_automatic, cat_of, check_whole, open_project, predict, said

from transformatcher.annotation import edits
from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Category
from transformatcher.annotation.scan import scan_photos
from transformatcher.errors import InputError

H, W = SIZE


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with open_project(tmp_path) as opened:
        yield opened
        check_whole(opened)


@pytest.fixture
def cat(project: Project) -> Category:
    return cat_of(project)


def undone_and_done(project: Project, edit: Callable[[], object]) -> None:
    """An edit is one action: undone, all is as before; done again, all is as after."""
    before = said(project)
    edit()
    after = said(project)
    assert after != before
    project.undo()
    assert said(project) == before
    project.redo()
    assert said(project) == after


# ---------------------------------------------------------------- categories


def test_a_category_has_keypoints_in_order_twins_and_a_skeleton(project: Project, cat: Category) -> None:
    left, right, nose = cat.keypoints
    assert cat.names == ("left eye", "right eye", "nose")
    assert (left.twin, right.twin, nose.twin) == (right.id, left.id, None)
    assert cat.skeleton == ((left.id, right.id),)
    assert cat.position(nose.id) == 2
    assert project.categories() == [cat]
    undone_and_done(project, lambda: edits.add_category(project, " dog ", ["a", "b"], [(1, 0), (0, 1)]))
    dog = project.category_named("dog")
    assert dog is not None
    assert dog.skeleton == ((dog.keypoints[0].id, dog.keypoints[1].id),)


@pytest.mark.parametrize(
    ("name", "keypoints", "skeleton", "message"),
    [
        ("cat", ["a"], [], "there is a category 'cat' already"),
        (" cat ", ["a"], [], "there is a category 'cat' already"),
        ("", ["a"], [], "'' is not a name: a name has 1 to 80 printable characters"),
        ("x" * 81, ["a"], [], "is not a name"),
        ("a\nb", ["a"], [], "is not a name"),
        ("dog", ["a", " "], [], "' ' is not a name"),
        ("dog", ["\ud800"], [], "is not a name"),
        ("dog", ["a", "b", "a "], [], "two keypoints are called 'a'; give each a name of its own"),
        ("dog", ["a", "b"], [(0, 2)], "an edge of the skeleton joins keypoints 1 and 3, of 2"),
        ("dog", ["a", "b"], [(-1, 1)], "an edge of the skeleton joins keypoints 0 and 2, of 2"),
        ("dog", ["a", "b"], [(1, 1)], "an edge of the skeleton joins keypoints 2 and 2, of 2"),
    ],
)
def test_what_is_no_category(
    project: Project, cat: Category, name: str, keypoints: list[str], skeleton: list[tuple[int, int]], message: str
) -> None:
    before = said(project)
    with pytest.raises(InputError, match=message):
        edits.add_category(project, name, keypoints, skeleton)
    if name.strip() != "cat":
        with pytest.raises(InputError, match=message):
            edits.change_category(project, cat.id, name, [(None, one) for one in keypoints], skeleton)
    assert said(project) == before
    assert project.journal.names() == ("add the category cat", None)


def test_keypoints_are_renamed_reordered_added_and_removed(project: Project, cat: Category) -> None:
    left, right, nose = cat.keypoints
    number = add_automatic(project, 1, cat.id)
    predict(project, number)
    for keypoint in (left, right):
        edits.set_mark(project, number, keypoint.id, 2, (3.0, 4.0))
    revision = project.revision
    undone_and_done(
        project,
        lambda: edits.change_category(
            project, cat.id, "kitten", [(nose.id, "tip"), (None, "right ear"), (left.id, "left ear")], [(0, 2)]
        ),
    )
    changed = project.category(cat.id)
    tip, right_ear, left_ear = changed.keypoints
    assert (changed.name, changed.names) == ("kitten", ("tip", "right ear", "left ear"))
    assert (tip.id, left_ear.id) == (nose.id, left.id)
    assert right_ear.id > nose.id
    assert (left_ear.twin, right_ear.twin, tip.twin) == (right_ear.id, left_ear.id, None)
    assert changed.skeleton == ((tip.id, left_ear.id),) or changed.skeleton == ((left_ear.id, tip.id),)
    assert set(project.instance(number).marks) == {left.id}
    assert right.id not in project.instance(number).predictions
    assert [summary.id for summary in project.summaries(revision)] == [1]


def test_what_a_category_cannot_become(project: Project, cat: Category) -> None:
    edits.add_category(project, "dog", ["a"])
    left, right, nose = cat.keypoints
    with pytest.raises(InputError, match="there is a category 'dog' already"):
        edits.change_category(project, cat.id, "dog ", [(left.id, "a")])
    with pytest.raises(InputError, match="the category 'cat' has no keypoint with the id 99"):
        edits.change_category(project, cat.id, "cat", [(99, "a"), (left.id, "b")])
    with pytest.raises(InputError, match="a keypoint of the category 'cat' is given twice"):
        edits.change_category(project, cat.id, "cat", [(nose.id, "a"), (nose.id, "b")])
    with pytest.raises(InputError, match="no category has the id 99"):
        edits.change_category(project, 99, "bird", [(right.id, "a")])
    edits.change_category(project, cat.id, "cat", [])
    assert project.category(cat.id).keypoints == ()


# ---------------------------------------------------------------- objects


def test_objects_are_added_with_and_without_a_box(project: Project, cat: Category) -> None:
    assert edits.add_instance(project, 1, cat.id).box is None
    undone_and_done(project, lambda: edits.add_instance(project, 1, cat.id, (-5.0, 2.123, 40.0, 99.0)))
    assert project.instances([1])[1].box == (0.0, 2.12, 40.0, H)
    with pytest.raises(InputError, match="no photo has the id 99"):
        edits.add_instance(project, 99, cat.id)
    with pytest.raises(InputError, match="no category has the id 99"):
        edits.add_instance(project, 1, 99)


@pytest.mark.parametrize(
    "box", [(5.0, 5.0, 8.0, 50.0), (50.0, 5.0, 8.0, 50.0), (100.0, 5.0, 150.0, 50.0), (0.0, float("nan"), 30.0, 30.0)]
)
def test_what_is_no_box(project: Project, cat: Category, box: Any) -> None:
    number = edits.add_instance(project, 1, cat.id).id
    message = rf"1\.png: a box has at least 4 × 4 pixels inside the photo of {W} × {H}"
    with pytest.raises(InputError, match=message):
        edits.add_instance(project, 1, cat.id, box)
    with pytest.raises(InputError, match=message):
        edits.change_box(project, number, box)
    assert [instance.id for instance in project.instances([1])] == [number]


def test_another_box_needs_other_predictions(project: Project, cat: Category) -> None:
    number = edits.add_instance(project, 1, cat.id, (0.0, 0.0, 40.0, 40.0)).id
    predict(project, number)
    edits.change_box(project, number, (0.0, 0.0, 40.0, 40.0))
    assert len(project.instance(number).predictions) == 3  # it is the same
    assert project.journal.names()[0] == "add an object"
    undone_and_done(project, lambda: edits.change_box(project, number, None))
    assert project.instance(number).predictions == {}
    with pytest.raises(InputError, match="no object has the id 99; it was removed"):
        edits.change_box(project, 99, None)


def test_an_object_goes_with_all_that_is_known_of_it(project: Project, cat: Category) -> None:
    number = edits.add_instance(project, 1, cat.id).id
    edits.set_mark(project, number, cat.keypoints[0].id, 2, (3.0, 4.0))
    predict(project, number, reference=number)
    undone_and_done(project, lambda: edits.remove_instance(project, number))
    for table in ("instance", "mark", "prediction", "predicted", "vote"):
        assert project.database.rows(f"SELECT * FROM {table}") == []
    with pytest.raises(InputError, match="it was removed"):
        edits.remove_instance(project, number)


# ---------------------------------------------------------------- marks


def test_a_mark_is_set_moved_hidden_and_taken_back(project: Project, cat: Category) -> None:
    number, keypoint = add_automatic(project, 1, cat.id), cat.keypoints[0].id
    predict(project, number)
    undone_and_done(project, lambda: edits.set_mark(project, number, keypoint, 2, (3.123, 4.0)))
    mark = project.instance(number).marks[keypoint]
    assert (mark.visibility, mark.xy, mark.source, mark.at[:2]) == (2, (3.12, 4.0), "person", "20")
    undone_and_done(project, lambda: edits.set_mark(project, number, keypoint, 1, (float(W), float(H))))
    undone_and_done(project, lambda: edits.set_mark(project, number, keypoint, 0))
    assert project.instance(number).marks[keypoint].xy is None
    assert project.instance(number).visible_marks == {}
    undone_and_done(project, lambda: edits.remove_mark(project, number, keypoint))
    assert keypoint in project.instance(number).predictions
    assert project.journal.names()[0] == "left eye: back to the prediction"


@pytest.mark.parametrize("xy", [(-1.0, 5.0), (5.0, H + 0.1), (float("nan"), 5.0), (5.0, float("inf"))])
def test_a_mark_lies_on_the_photo(project: Project, cat: Category, xy: tuple[float, float]) -> None:
    number = add_automatic(project, 1, cat.id)
    with pytest.raises(InputError, match=rf"1\.png: \(.*\) lies outside the photo of {W} × {H} pixels"):
        edits.set_mark(project, number, cat.keypoints[0].id, 2, xy)


def test_marks_that_make_no_sense(project: Project, cat: Category) -> None:
    number = add_automatic(project, 1, cat.id)
    with pytest.raises(InputError, match="a keypoint that is there needs a position"):
        edits.set_mark(project, number, cat.keypoints[0].id, 2)
    with pytest.raises(InputError, match="the category 'cat' has no keypoint with the id 99"):
        edits.set_mark(project, number, 99, 0)
    with pytest.raises(InputError, match="it was removed"):
        edits.set_mark(project, 99, cat.keypoints[0].id, 0)
    with project.changing([1]):
        project.database.run("UPDATE photo SET width = NULL, height = NULL, problem = 'no image' WHERE id = 1")
    with pytest.raises(InputError, match=r"1\.png: no image"):
        edits.set_mark(project, number, cat.keypoints[0].id, 2, (3.0, 4.0))
    assert project.instance(number).marks == {}


def test_who_marks_a_skipped_photo_does_not_skip_it(project: Project, cat: Category) -> None:
    number = add_automatic(project, 1, cat.id)
    edits.skip(project, 1)
    undone_and_done(project, lambda: edits.set_mark(project, number, cat.keypoints[0].id, 2, (3.0, 4.0)))
    assert not project.photo(1).skipped


# ---------------------------------------------------------------- review


def test_accepting_turns_sure_predictions_into_marks(project: Project, cat: Category) -> None:
    left, right, nose = (keypoint.id for keypoint in cat.keypoints)
    number = add_automatic(project, 1, cat.id)
    predict(project, number)
    with project.changing([1]):
        project.database.run("UPDATE prediction SET confidence = 0.49 WHERE keypoint_id = ?", right)
    edits.set_mark(project, number, nose, 1, (7.0, 8.0))
    undone_and_done(project, lambda: edits.accept(project, 1))
    marks = project.instance(number).marks
    assert {k: (m.visibility, m.xy, m.source) for k, m in marks.items()} == {
        left: (2, (5.0, 6.0), "accepted"),
        right: (0, None, "accepted"),
        nose: (1, (7.0, 8.0), "person"),
    }
    assert project.instance(number).reviewed
    undone_and_done(project, lambda: edits.reopen(project, 1))
    assert list(project.instance(number).marks) == [nose]
    assert not project.instance(number).reviewed
    assert len(project.instance(number).predictions) == 3


def test_what_nobody_can_see_is_not_accepted(project: Project, cat: Category, tmp_path: Path) -> None:
    number = add_automatic(project, 1, cat.id)
    predict(project, number)
    (tmp_path / "1.png").unlink()
    scan_photos(project)
    with pytest.raises(InputError, match=r"1\.png: the file is not there any more; nobody can see"):
        edits.accept(project, 1)
    assert project.instance(number).marks == {}


def test_accepting_twice_is_accepting_once(project: Project, cat: Category) -> None:
    predict(project, add_automatic(project, 1, cat.id))
    edits.accept(project, 1)
    before = said(project)
    edits.accept(project, 1)
    assert said(project) == before
    project.undo()
    assert said(project) != before


def test_a_photo_without_objects_is_skipped_not_accepted(project: Project) -> None:
    with pytest.raises(
        InputError, match=r"1\.png: there is nothing to accept; mark a keypoint first, or skip the photo"
    ):
        edits.accept(project, 1)
    undone_and_done(project, lambda: edits.skip(project, 1))
    undone_and_done(project, lambda: edits.skip(project, 1, skipped=False))
    edits.skip(project, 2)
    undone_and_done(project, lambda: edits.reopen(project, 2))


@pytest.mark.parametrize("edit", [edits.accept, edits.reopen, edits.skip])
def test_there_is_no_such_photo(project: Project, edit: Callable[[Project, int], None]) -> None:
    with pytest.raises(InputError, match="no photo has the id 99"):
        edit(project, 99)


def test_predictions_are_forgotten_without_an_action(project: Project, cat: Category) -> None:
    first, second = (add_automatic(project, photo, cat.id) for photo in (1, 2))
    for number in (first, second):
        predict(project, number, reference=first)
    revision = project.revision
    edits.forget_predictions(project, [second, 99])
    assert project.instance(second).predictions == {}
    assert len(project.instance(first).predictions) == 3
    assert [summary.id for summary in project.summaries(revision)] == [2]
    assert project.journal.names()[0] == "add the category cat"
