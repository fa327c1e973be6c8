"""How long a person takes for a photo."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from helpers.studio_client import open_project

from transformatcher.web.studio.pace import seconds_per_photo


@pytest.mark.parametrize(
    ("gaps", "pace"),
    [
        ([], None),
        ([10, 10], None),
        ([10, 20, 60], 20),
        ([10, 301, 20], None),  # a break is no gap
        ([10, 300, 20], 20),
        ([4, 3600, 6, 8, 10], 7),
        ([100] * 150 + [5] * 150, 5),  # of the last 200
    ],
)
def test_median_of_the_gaps_without_breaks(tmp_path: Path, gaps: list[float], pace: float | None):
    time = datetime(2026, 1, 1, tzinfo=UTC)
    times = [time := time + timedelta(seconds=gap) for gap in [0, *gaps]]
    with open_project(tmp_path) as project:
        rows = [("accept", time.isoformat(timespec="milliseconds"), "done") for time in times]
        rows += [("nose: move", time.isoformat(), "done"), ("accept", time.isoformat(), "undone")]
        with project.changing():
            project.database.run_many("INSERT INTO action (name, at, state) VALUES (?, ?, ?)", rows)
        assert seconds_per_photo(project) == pace
