"""What the page shows of all photos, kept up to date with the project."""

from pathlib import Path

import pytest
from helpers.studio_client import open_project

from transformatcher.annotation.edits import skip
from transformatcher.errors import InputError
from transformatcher.web.studio.overview import Overview


def test_only_what_has_changed_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with open_project(folder) as project:
        overview = Overview(project, 0.5)
        revision, photos = overview.since(-1)
        assert len(photos) == 4
        read = []
        summaries = project.summaries
        monkeypatch.setattr(project, "summaries", lambda since: read.append(since) or summaries(since))
        assert overview.totals().left == 4
        assert overview.photo(photos[0].id) == photos[0]
        assert read == []
        skip(project, photos[0].id)
        assert overview.totals().left == 3
        assert overview.photo(photos[0].id).state == "reviewed"
        assert [photo.id for photo in overview.since(revision)[1]] == [photos[0].id]
        assert read == [revision]
        with pytest.raises(InputError, match="no photo has the id 99"):
            overview.photo(99)


def test_totals_are_those_of_the_project(folder: Path):
    with open_project(folder) as project:
        overview = Overview(project, 0.5)
        overview.totals()
        for photo in project.photos()[:3]:
            skip(project, photo.id)
        skip(project, project.photos()[0].id, skipped=False)
        counts = {state: n for state, n in overview.totals().counts.items() if n}
        assert counts == project.counts() == {"reviewed": 2, "unmarked": 2}
