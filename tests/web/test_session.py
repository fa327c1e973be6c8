"""Photos, points and pins of a session."""

import pytest
from helpers.web_session import fake_photo

from transformatcher.errors import InputError
from transformatcher.web.errors import RequestError
from transformatcher.web.predictions import missing_pairs
from transformatcher.web.session import XY, Limits, Session, SessionPhoto


def test_names_are_unique(session: Session):
    session.add_photo(fake_photo("x.jpg", stored=(10, 20)), as_source=False)
    session.add_photo(SessionPhoto("y", "x.jpg", (9, 9), session.source.encoded, b""), as_source=False)
    assert [p.name for p in session.targets] == ["one.jpg", "two.jpg", "x.jpg", "x (2).jpg"]
    session.add_point(XY(1, 1))
    assert session.add_point(XY(1, 1), "point 3").name == "point 3"
    assert session.add_point(XY(1, 1)).name == "point 4"
    session.remove_point(2)
    assert session.add_point(XY(1, 1)).name == "point 4 (2)"


def test_mistakes(session: Session):
    session.add_point(XY(1, 1), "ear")
    for act, message in (
        (lambda: session.add_point(XY(1, 1), "ear"), "Another point is called “ear”"),
        (lambda: session.change_point(1, name="ear"), "Another point is called “ear”"),
        (lambda: session.change_point(1, name="  "), "1 to 80 characters"),
        (lambda: session.add_point(XY(201, 1)), "lies outside the image of 200 × 100 pixels"),
        (lambda: session.pin(1, "one", XY(0, -1)), "lies outside"),
        (lambda: session.pin(1, "src", XY(0, 0)), "This photo is the source"),
        (lambda: Session().add_point(XY(0, 0)), "no source photo yet"),
    ):
        with pytest.raises(InputError, match=message):
            act()
    for act, message in (
        (lambda: session.point(9), "point has been deleted"),
        (lambda: session.pin(1, "nine", None), "photo has been removed"),
    ):
        with pytest.raises(RequestError, match=message):
            act()
    assert session.points[1].name == "nose"


def test_a_new_source_removes_points_and_matches(session: Session):
    session.pin(1, "one", XY(1, 1))
    session.add_photo(fake_photo("new.jpg"), as_source=True)
    assert "src" not in session.photos
    assert (session.points, session.pins, session.pairs) == ({}, {}, {})
    assert [p.id for p in missing_pairs(session)["new"]] == ["one", "two"]


def test_a_removed_target_leaves_nothing(session: Session):
    session.pin(1, "one", XY(1, 1))
    session.remove_photo("one")
    assert session.pins == {}
    assert list(session.pairs) == [("src", "two")]


def test_limits():
    session = Session(Limits(photos=2, points=1))
    session.add_photo(fake_photo("src.jpg"), as_source=True)
    session.add_photo(fake_photo("one.jpg"), as_source=False)
    with pytest.raises(InputError, match="at most 2 photos"):
        session.add_photo(fake_photo("two.jpg"), as_source=False)
    session.add_photo(fake_photo("new.jpg"), as_source=True)  # replaces the old one
    session.add_point(XY(0, 0))
    with pytest.raises(InputError, match="at most 1 points"):
        session.add_point(XY(0, 0))


def test_ids_cannot_be_guessed():
    assert len({Session().id for _ in range(100)}) == 100
    assert len(Session().id) >= 24
