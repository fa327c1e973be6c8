"""The journal's times → how long a person takes for a photo."""

from datetime import datetime
from itertools import pairwise
from statistics import median

from transformatcher.annotation.project import Project

BREAK_S = 300.0  # a longer gap between two photos is a break, not work
MIN_GAPS = 3
RECENT = 200  # photos; one gets quicker with time


def seconds_per_photo(project: Project) -> float | None:
    """The median time between two accepted photos, of those accepted last; None if there are too few to tell."""
    rows = project.database.rows(
        "SELECT at FROM action WHERE name = 'accept' AND state = 'done' ORDER BY id DESC LIMIT ?", RECENT
    )
    times = sorted(datetime.fromisoformat(row["at"]).timestamp() for row in rows)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    work = [gap for gap in gaps if gap <= BREAK_S]
    return median(work) if len(work) >= MIN_GAPS else None
