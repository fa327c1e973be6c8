"""Actions are stored as a whole, undone in the reverse order and done again, also when the program wrote in between."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.edited_project import add_automatic, cat_of, check_whole, open_project, predict, said

from transformatcher.annotation import edits
from transformatcher.annotation.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with open_project(tmp_path) as opened:
        yield opened


def names(project: Project) -> list[str]:
    return [row["name"] for row in project.database.rows("SELECT name FROM category ORDER BY id")]


def add(project: Project, name: str) -> None:
    with project.journal.action(f"add {name}") as action:
        action.insert("category", name=name)


def test_undo_and_redo_go_to_and_fro_across_restarts(tmp_path: Path) -> None:
    with open_project(tmp_path) as project:
        for name in "abc":
            add(project, name)
    for left, undone in ((["a", "b"], "add c"), (["a"], "add b"), ([], "add a")):
        with Project(tmp_path) as project:
            assert project.journal.names()[0] == undone
            assert project.undo() == (undone, [])
            assert names(project) == left
            assert project.journal.names()[1] == undone
    with Project(tmp_path) as project:
        assert project.undo() is None
    for there, redone in ((["a"], "add a"), (["a", "b"], "add b"), (["a", "b", "c"], "add c")):
        with Project(tmp_path) as project:
            assert project.redo() == (redone, [])
            assert names(project) == there
    with Project(tmp_path) as project:
        assert project.redo() is None
        assert project.journal.names() == ("add c", None)


def test_a_new_action_drops_those_that_were_undone(project: Project) -> None:
    add(project, "a")
    add(project, "b")
    project.undo()
    add(project, "c")
    assert project.redo() is None
    assert project.journal.names() == ("add c", None)
    project.undo()
    project.undo()
    assert names(project) == []
    project.redo()
    project.redo()
    assert names(project) == ["a", "c"]


def test_an_action_that_changes_nothing_is_none_and_drops_nothing(project: Project) -> None:
    add(project, "a")
    project.undo()
    with project.journal.action("nothing"):
        pass
    assert project.journal.names() == (None, "add a")


def add_and_fail(project: Project) -> None:
    with project.journal.action("add two") as action:
        action.insert("category", name="x")
        action.insert("category", name="y")
        raise ZeroDivisionError


def test_an_action_that_fails_leaves_nothing(project: Project) -> None:
    with pytest.raises(ZeroDivisionError):
        add_and_fail(project)
    assert names(project) == []
    assert project.journal.names() == (None, None)
    add(project, "c")
    assert project.journal.names() == ("add c", None)


def test_an_action_inside_another_is_a_part_of_it(project: Project) -> None:
    with project.journal.action("all") as action:
        action.insert("category", name="a")
        add(project, "b")
        with pytest.raises(ZeroDivisionError):
            add_and_fail(project)
        action.insert("category", name="c")
    assert names(project) == ["a", "b", "c"]
    assert project.undo() == ("all", [])
    assert names(project) == []
    assert project.undo() is None
    project.redo()
    assert names(project) == ["a", "b", "c"]


def test_only_columns_that_change_are_noted(project: Project) -> None:
    add(project, "a")
    with project.journal.action("same") as action:
        action.update("category", {"id": 1}, name="a")
    assert project.journal.names() == ("add a", None)
    with project.journal.action("rename") as action:
        action.update("category", {"id": 1}, name="b", position=0)
    assert (action.changes[0].before, action.changes[0].after) == ({"name": "a"}, {"name": "b"})


def test_put_adds_or_changes_and_delete_may_find_nothing(project: Project) -> None:
    for name in ("a", "b"):
        with project.journal.action(name) as action:
            action.put("category", {"id": 7}, name=name)
            action.delete("category", id=8)
    assert names(project) == ["b"]
    project.undo()
    assert names(project) == ["a"]
    project.undo()
    assert names(project) == []


# ---------------------------------------------------------------- what the program writes in between


def test_undoing_a_category_takes_the_automatic_objects_of_it_along(project: Project) -> None:
    cat = cat_of(project)
    automatic = [add_automatic(project, photo, cat.id) for photo in (1, 2)]
    for number in automatic:
        predict(project, number, reference=automatic[0])
    edits.set_mark(project, automatic[0], cat.keypoints[0].id, 2, (3.0, 4.0))
    before = said(project)
    project.undo()
    assert project.undo() == ("add the category cat", [1, 2])
    check_whole(project)
    assert project.instances() == []
    assert project.redo() == ("add the category cat", [1, 2])
    assert [instance.id for instance in project.instances()] == automatic
    project.redo()  # the mark on an object that no action had added
    check_whole(project)
    assert said(project) == before


def test_a_category_can_be_undone_when_an_older_object_was_guessed_to_be_of_it(project: Project) -> None:
    cat = cat_of(project)
    automatic = add_automatic(project, 1, cat.id)
    edits.set_mark(project, automatic, cat.keypoints[0].id, 2, (3.0, 4.0))
    edits.remove_mark(project, automatic, cat.keypoints[0].id)
    dog = edits.add_category(project, "dog", ["nose"])
    with project.changing([1], computed=True):
        project.database.run("UPDATE instance SET category_id = ? WHERE id = ?", dog.id, automatic)
    predict(project, automatic)
    project.undo()
    check_whole(project)
    assert project.instance(automatic).category_id == cat.id
    assert project.instance(automatic).predictions == {}
    project.undo()
    assert list(project.instance(automatic).marks) == [cat.keypoints[0].id]


def test_a_mark_comes_back_on_an_object_of_its_own_category(project: Project) -> None:
    cat, dog = cat_of(project), edits.add_category(project, "dog", ["nose"])
    automatic = add_automatic(project, 1, cat.id)
    edits.set_mark(project, automatic, cat.keypoints[0].id, 2, (3.0, 4.0))
    project.undo()
    with project.changing([1], computed=True):
        project.database.run("UPDATE instance SET category_id = ? WHERE id = ?", dog.id, automatic)
    predict(project, automatic)
    project.redo()
    check_whole(project)
    instance = project.instance(automatic)
    assert (instance.category_id, list(instance.marks), instance.predictions) == (cat.id, [cat.keypoints[0].id], {})


def test_a_removed_object_that_comes_back_is_alone_again(project: Project) -> None:
    cat = cat_of(project)
    own = edits.add_instance(project, 1, cat.id).id
    edits.set_mark(project, own, cat.keypoints[0].id, 2, (3.0, 4.0))
    edits.remove_instance(project, own)
    automatic = add_automatic(project, 1, cat.id)
    edits.set_mark(project, automatic, cat.keypoints[1].id, 2, (5.0, 4.0))
    after = said(project)
    project.undo()
    project.undo()
    assert [instance.id for instance in project.instances([1])] == [own]
    project.redo()
    project.redo()
    assert said(project) == after
    assert [instance.id for instance in project.instances([1])] == [automatic]
    check_whole(project)


def test_an_added_object_that_comes_back_replaces_the_automatic_one(project: Project) -> None:
    cat = cat_of(project)
    own = edits.add_instance(project, 1, cat.id).id
    project.undo()
    predict(project, add_automatic(project, 1, cat.id))
    project.redo()
    assert [instance.id for instance in project.instances([1])] == [own]


def test_objects_that_a_person_added_are_no_strays(project: Project) -> None:
    cat = cat_of(project)
    first, second = (edits.add_instance(project, 1, cat.id).id for _ in range(2))
    edits.remove_instance(project, first)
    project.undo()
    assert [instance.id for instance in project.instances([1])] == [first, second]


def test_an_automatic_object_that_was_there_before_stays(project: Project) -> None:
    cat = cat_of(project)
    automatic = add_automatic(project, 1, cat.id)
    own = edits.add_instance(project, 1, cat.id, (0.0, 0.0, 30.0, 30.0)).id
    project.undo()
    project.redo()
    assert [instance.id for instance in project.instances([1])] == [automatic, own]


def test_a_removed_object_comes_back_without_its_votes(project: Project) -> None:
    cat = cat_of(project)
    reference, other = (add_automatic(project, photo, cat.id) for photo in (1, 2))
    edits.set_mark(project, reference, cat.keypoints[0].id, 2, (3.0, 4.0))
    for number in (reference, other):
        predict(project, number, reference=reference)
    before = said(project)
    edits.remove_instance(project, reference)
    assert project.database.rows("SELECT * FROM vote") == []
    assert project.undo() == ("remove an object", [1])
    assert said(project) == before
    check_whole(project)


def test_undoing_a_change_of_keypoints_brings_marks_twins_and_edges_back(project: Project) -> None:
    cat = cat_of(project)
    number = add_automatic(project, 1, cat.id)
    for keypoint in cat.keypoints:
        edits.set_mark(project, number, keypoint.id, 2, (3.0, 4.0))
    before = said(project)
    left, _, nose = cat.keypoints
    edits.change_category(project, cat.id, "dog", [(nose.id, "tip"), (None, "tail"), (left.id, "left eye")], [(0, 2)])
    predict(project, number)
    after = said(project)
    assert project.undo() == ("change the category cat", [1])
    assert said(project) == before
    check_whole(project)
    predict(project, number)
    assert project.redo() == ("change the category cat", [1])
    assert said(project) == after
    check_whole(project)


@pytest.mark.parametrize("redo", [False, True])
def test_predictions_in_another_box_are_dropped(project: Project, redo: bool) -> None:
    cat = cat_of(project)
    number = edits.add_instance(project, 1, cat.id, (0.0, 0.0, 30.0, 30.0)).id
    other = add_automatic(project, 2, cat.id)
    edits.change_box(project, number, (10.0, 0.0, 50.0, 30.0))
    if redo:
        project.undo()
    for one in (number, other):
        predict(project, one, reference=other)
    move = project.redo if redo else project.undo
    assert move() == ("change a box", [1])
    assert (project.instance(number).predictions, project.instance(number).predicted_at) == ({}, None)
    assert len(project.instance(other).predictions) == 3


def test_undo_finds_a_photo_that_has_moved(project: Project) -> None:
    edits.skip(project, 1)
    with project.changing([1]):
        project.database.run("UPDATE photo SET path = 'moved.png' WHERE id = 1")
    assert project.undo() == ("skip", [1])
    assert (project.photo(1).skipped, project.photo(1).path) == (False, "moved.png")


def test_a_long_journal_is_read_quickly(project: Project) -> None:
    """Names are asked for at each change; an index answers."""
    for state in ("done", "undone"):
        plan = project.database.rows(
            "EXPLAIN QUERY PLAN SELECT id, name FROM action WHERE state = ? ORDER BY id DESC LIMIT 1", state
        )
        assert [row["detail"] for row in plan] == ["SEARCH action USING INDEX action_state (state=?)"]
