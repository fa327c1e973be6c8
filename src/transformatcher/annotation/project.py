"""Folder of photos and its project file → photos, categories, marks and predictions, kept through everything."""

import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformatcher.annotation.database import Database
from transformatcher.annotation.journal import Action, Change, Journal
from transformatcher.annotation.records import (
    Category,
    Instance,
    Keypoint,
    Mark,
    Photo,
    PhotoSummary,
    PixelBox,
    Prediction,
)
from transformatcher.errors import InputError
from transformatcher.files import exclusive_file_lock

PROJECT = "keypoints.sqlite"  # the project's file in the folder of its photos

_STATE = """
  CASE WHEN p.problem IS NOT NULL THEN 'failed'
       WHEN p.skipped THEN 'reviewed'
       WHEN EXISTS (SELECT 1 FROM instance i WHERE i.photo_id = p.id) AND NOT EXISTS
            (SELECT 1 FROM instance i WHERE i.photo_id = p.id AND i.reviewed_at IS NULL) THEN 'reviewed'
       WHEN EXISTS (SELECT 1 FROM instance i JOIN mark m ON m.instance_id = i.id WHERE i.photo_id = p.id) THEN 'marked'
       WHEN EXISTS (SELECT 1 FROM instance i JOIN prediction q ON q.instance_id = i.id WHERE i.photo_id = p.id)
            THEN 'predicted'
       ELSE 'unmarked' END
"""


class Project:
    """An annotation project: the photos of a folder with everything that is known of them.

    Changes of a person go through :meth:`edit`, into the journal. One process at a time may write to a project.

    Args:
        folder: of the photos, which are never written to.
        file: of the project; None: ``keypoints.sqlite`` in the folder.
        read_only: for exports, beside a process that writes.

    Example:
        >>> with Project(Path("photos")) as project:
        ...     scan_photos(project)
        ...     cat = add_category(project, "cat", ["left eye", "right eye", "nose"])
    """

    def __init__(self, folder: Path, file: Path | None = None, *, read_only: bool = False) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder of photos")
        self.folder = folder
        self.file = folder / PROJECT if file is None else file
        if not self.file.parent.is_dir():
            raise InputError(f"{self.file}: {self.file.parent} is not a folder; make it first, or choose another one")
        self._lock = None if read_only else exclusive_file_lock(
            self.file.resolve(), f"{self.file}: another process has this project open; close that first"
        )  # fmt: skip
        if self._lock is not None:
            self._lock.__enter__()
        try:
            self.database = Database(self.file, read_only=read_only)
            try:
                self._check_folder(read_only=read_only)
            except BaseException:
                self.database.close()
                raise
        except BaseException:
            self._release()
            raise
        self.journal = Journal(self.database)
        self.changed = threading.Condition()  # notified after each change; see wait_for_change
        self._n_changes = 0  # of this process
        self._summaries: dict[int, PhotoSummary] = {}  # by photo, as of the revision self._summarised
        self._summarised = -1
        self.edits = 0  # of this process: changes by a person, of the folder, and of what photos hold

    def __enter__(self) -> "Project":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write everything into the project's file and let others open it."""
        self.database.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.__exit__(None, None, None)
            self._lock = None

    def _check_folder(self, *, read_only: bool) -> None:
        """Remember the folder, or refuse another one than the project was made for, with none of its photos."""
        folder = os.fspath(self.folder.absolute())
        if self.setting("folder") == folder:
            return
        paths = [row["path"] for row in self.database.rows("SELECT path FROM photo")]
        if paths and not any((self.folder / path).exists() for path in paths):
            there = self.setting("folder", "another folder")
            raise InputError(
                f"{self.file}: made for {there}, and none of its photos are in {self.folder}; open it with the folder "
                "of its photos, or choose another file for the project"
            )
        if not read_only:
            with self.database.transaction():
                self._set("folder", folder)

    # ------------------------------------------------------------ settings, revisions

    def setting(self, key: str, default: Any = None) -> Any:
        """A stored setting."""
        row = self.database.row("SELECT value FROM setting WHERE key = ?", key)
        return default if row is None else json.loads(row["value"])

    def set_setting(self, key: str, value: Any) -> None:
        """Store a setting (any JSON value)."""
        with self.database.transaction():
            self._set(key, value)

    def _set(self, key: str, value: Any) -> None:
        self.database.run("INSERT OR REPLACE INTO setting (key, value) VALUES (?, ?)", key, json.dumps(value))

    @property
    def cache(self) -> Path:
        """The folder beside the project's file for what can be computed again; it may be deleted at any time."""
        return self.file.with_name(f"{self.file.name}.cache")

    @property
    def revision(self) -> int:
        """The number of the last change."""
        return int(self.setting("revision", 0))

    @contextmanager
    def changing(self, photo_ids: Iterable[int] = (), *, computed: bool = False) -> Iterator[set[int]]:
        """A transaction that changes photos: those given, and those added to the set that it yields.

        Unless all that changes is ``computed`` from the rest of the project, :attr:`edits` counts it.
        """
        touched = set(photo_ids)
        with self.database.transaction():
            yield touched
            revision = self.revision + 1
            self._set("revision", revision)
            self.database.run_many("UPDATE photo SET revision = ? WHERE id = ?", [(revision, i) for i in touched])
        with self.changed:
            self._n_changes += 1
            self.edits += not computed
            self.changed.notify_all()

    def wait_for_change(self, revision: int, timeout_s: float) -> int:
        """Wait until the project is at a later revision than this one; returns the current one."""
        end = time.monotonic() + timeout_s
        while True:
            with self.changed:
                seen = self._n_changes
            # Read outside: a thread inside a transaction may wait for the condition while it has the database's lock.
            current, left = self.revision, end - time.monotonic()
            if current > revision or left <= 0:
                return current
            with self.changed:
                if self._n_changes == seen:
                    self.changed.wait(left)

    # ------------------------------------------------------------ what a person changes

    @contextmanager
    def edit(self, name: str, photo_ids: Iterable[int] = ()) -> Iterator[Action]:
        """An action in the journal that changes these photos; see :meth:`Journal.action`."""
        with self.changing(photo_ids), self.journal.action(name) as action:
            yield action

    def undo(self) -> tuple[str, list[int]] | None:
        """Undo the last action. Returns its name and the photos that it changed; None if there is nothing to undo."""
        return self._after(self.journal.undo)

    def redo(self) -> tuple[str, list[int]] | None:
        """Do again what was undone last; returns the same as :meth:`undo`."""
        return self._after(self.journal.redo)

    def _after(self, move: Callable[[], tuple[str, list[Change]] | None]) -> tuple[str, list[int]] | None:
        with self.database.transaction():
            moved = move()
            if moved is None:
                return None
            name, changes = moved
            with self.changing(self._photos_of(changes)) as touched:
                self.forget_predictions(self._outdated(changes))
        return name, sorted(touched)

    def _photos_of(self, changes: Sequence[Change]) -> set[int]:
        """The photos on which something looks different after these changes."""
        photos, instances, keypoints, categories = set[int](), set[int](), set[int](), set[int]()
        for change in changes:
            row = {**change.key, **(change.before or {}), **(change.after or {})}
            if change.table == "photo":
                photos.add(row["id"])
            elif change.table == "instance":
                instances.add(row["id"])
                photos |= {row["photo_id"]} if "photo_id" in row else set()
            elif change.table == "mark":
                instances.add(row["instance_id"])
            elif change.table == "category":
                categories.add(row["id"])
            elif change.table == "keypoint":
                keypoints.add(row["id"])
                categories |= {row["category_id"]} if "category_id" in row else set()
        photos |= self._ids(
            "SELECT DISTINCT photo_id FROM instance WHERE id IN (SELECT value FROM json_each(?))", instances
        )
        categories |= self._ids(
            "SELECT category_id FROM keypoint WHERE id IN (SELECT value FROM json_each(?))", keypoints
        )
        query = "SELECT DISTINCT photo_id FROM instance WHERE category_id IN (SELECT value FROM json_each(?))"
        return photos | self._ids(query, categories)

    def _outdated(self, changes: Sequence[Change]) -> set[int]:
        """The objects whose predictions are wrong after these changes: of another box, or of another category."""
        objects = [change for change in changes if change.table == "instance" and change.before and change.after]
        boxes = {
            change.key["id"] for change in objects if change.after and {"x0", "y0", "x1", "y1"} & change.after.keys()
        }
        query = """SELECT DISTINCT q.instance_id FROM prediction q JOIN keypoint k ON k.id = q.keypoint_id
                   JOIN instance i ON i.id = q.instance_id WHERE k.category_id != i.category_id
                   AND i.id IN (SELECT value FROM json_each(?))"""
        return boxes | self._ids(query, {change.key["id"] for change in objects})

    def _ids(self, query: str, ids: Collection[int]) -> set[int]:
        """The first column of a query about some ids."""
        return {row[0] for row in self.database.rows(query, json.dumps(sorted(ids)))} if ids else set()

    def forget_predictions(self, instance_ids: Collection[int]) -> None:
        """Drop what was predicted for objects, to be predicted again. Call it inside :meth:`changing`."""
        for table in ("prediction", "predicted", "vote"):
            self.database.run(
                f"DELETE FROM {table} WHERE instance_id IN (SELECT value FROM json_each(?))",
                json.dumps(sorted(instance_ids)),
            )

    # ------------------------------------------------------------ categories

    def categories(self) -> list[Category]:
        """All categories, in order."""
        with self.database.reading():
            rows = self.database.rows("SELECT * FROM category ORDER BY position, id")
            points = self.database.rows("SELECT * FROM keypoint ORDER BY category_id, position, id")
            pairs = self.database.rows("SELECT k.category_id, a, b FROM edge JOIN keypoint k ON k.id = a ORDER BY a, b")
        keypoints: dict[int, list[Keypoint]] = {}
        for row in points:
            keypoints.setdefault(row["category_id"], []).append(Keypoint(row["id"], row["name"], row["twin"]))
        edges: dict[int, list[tuple[int, int]]] = {}
        for row in pairs:
            edges.setdefault(row["category_id"], []).append((row["a"], row["b"]))
        return [
            Category(row["id"], row["name"], tuple(keypoints.get(row["id"], ())), tuple(edges.get(row["id"], ())))
            for row in rows
        ]

    def category(self, category_id: int) -> Category:
        """The category with this id."""
        return only((c for c in self.categories() if c.id == category_id), f"no category has the id {category_id}")

    def category_named(self, name: str) -> Category | None:
        """The category with this name, if there is one."""
        return next((c for c in self.categories() if c.name == name), None)

    # ------------------------------------------------------------ photos

    def photos(self) -> list[Photo]:
        """All photos, by path."""
        return [_photo(row) for row in self.database.rows("SELECT * FROM photo ORDER BY path")]

    def photo(self, photo_id: int) -> Photo:
        """The photo with this id."""
        rows = self.database.rows("SELECT * FROM photo WHERE id = ?", photo_id)
        return only(map(_photo, rows), f"no photo has the id {photo_id}")

    def path_of(self, photo: Photo) -> Path:
        """The file of a photo."""
        return self.folder / photo.path

    def summaries(self, since: int = -1) -> list[PhotoSummary]:
        """What the grid shows of all photos that changed after a revision, by path."""
        with self.database.reading():
            if not self.database.is_writing:  # what may be taken back is not remembered
                self._summarise()
                found = [summary for summary in self._summaries.values() if summary.revision > since]
                return sorted(found, key=lambda summary: summary.path)
            return self._read_summaries(since)

    def counts(self) -> dict[str, int]:
        """How many photos are in each state."""
        return dict(Counter(summary.state for summary in self.summaries()))

    def _summarise(self) -> None:
        """Bring the summaries in memory up to date. To read all of a large project takes a second."""
        revision = self.revision
        (n_photos,) = self.database.row("SELECT COUNT(*) FROM photo") or (0,)
        self._summaries |= {summary.id: summary for summary in self._read_summaries(self._summarised)}
        if len(self._summaries) != n_photos:
            self._summaries = {summary.id: summary for summary in self._read_summaries(-1)}
        self._summarised = revision

    def _read_summaries(self, since: int) -> list[PhotoSummary]:
        rows = self.database.rows(
            f"""SELECT p.*, {_STATE} AS state, s.sureness, s.instances, s.same_kind FROM photo p LEFT JOIN (
                  SELECT i.photo_id, COUNT(DISTINCT i.id) AS instances,
                         MIN(CASE WHEN i.reviewed_at IS NULL AND m.keypoint_id IS NULL THEN q.confidence END)
                           AS sureness,
                         MAX(CASE WHEN i.reviewed_at IS NULL THEN d.same_kind END) AS same_kind
                  FROM instance i LEFT JOIN prediction q ON q.instance_id = i.id
                  LEFT JOIN predicted d ON d.instance_id = i.id
                  LEFT JOIN mark m ON m.instance_id = i.id AND m.keypoint_id = q.keypoint_id
                  WHERE i.photo_id IN (SELECT id FROM photo WHERE revision > ?) GROUP BY i.photo_id
                ) s ON s.photo_id = p.id WHERE p.revision > ? ORDER BY p.path""",
            since,
            since,
        )
        return [
            PhotoSummary(
                row["id"], row["path"], _size(row), row["state"], row["sureness"], row["instances"] or 0,
                row["problem"], row["revision"], row["same_kind"],
            )
            for row in rows
        ]  # fmt: skip

    # ------------------------------------------------------------ instances

    def instances(self, photo_ids: Collection[int] | None = None) -> list[Instance]:
        """The instances of some photos, or of all, with marks and predictions."""
        chosen = "WHERE i.photo_id IN (SELECT value FROM json_each(?))" if photo_ids is not None else ""
        values = [] if photo_ids is None else [json.dumps(list(photo_ids))]
        with self.database.reading():
            rows = self.database.rows(
                f"""SELECT i.*, d.same_kind, d.at AS predicted_at
                    FROM instance i LEFT JOIN predicted d ON d.instance_id = i.id {chosen} ORDER BY i.id""",
                *values,
            )
            columns = "m.instance_id, m.keypoint_id, m.visibility, m.x, m.y, m.source, m.at"
            marked = self.database.rows(
                f"SELECT {columns} FROM instance i CROSS JOIN mark m ON m.instance_id = i.id {chosen}", *values
            )
            columns = "q.instance_id, q.keypoint_id, q.x, q.y, q.confidence, q.reference, q.mirrored"
            predicted = self.database.rows(
                f"SELECT {columns} FROM instance i CROSS JOIN prediction q ON q.instance_id = i.id {chosen}", *values
            )
        marks: dict[int, dict[int, Mark]] = {row["id"]: {} for row in rows}
        for instance_id, keypoint_id, visibility, x, y, source, at in marked:
            marks[instance_id][keypoint_id] = Mark(visibility, None if x is None else (x, y), source, at)
        found: dict[int, dict[int, Prediction]] = {row["id"]: {} for row in rows}
        for instance_id, keypoint_id, x, y, confidence, reference, mirrored in predicted:
            found[instance_id][keypoint_id] = Prediction((x, y), confidence, reference, bool(mirrored))
        return [
            Instance(
                row["id"], row["photo_id"], row["category_id"], _box(row), row["reviewed_at"], row["same_kind"],
                marks[row["id"]], found[row["id"]], row["predicted_at"], bool(row["automatic"]),
            )
            for row in rows
        ]  # fmt: skip

    def instance(self, instance_id: int) -> Instance:
        """The instance with this id."""
        row = self.database.row("SELECT photo_id FROM instance WHERE id = ?", instance_id)
        rows = [] if row is None else self.instances([row["photo_id"]])
        return only((i for i in rows if i.id == instance_id), f"no object has the id {instance_id}; it was removed")


def only(items: Iterable[Any], problem: str) -> Any:
    """The first of some items; InputError if there is none."""
    for item in items:
        return item
    raise InputError(problem)


# ---------------------------------------------------------------- rows


def _photo(row: sqlite3.Row) -> Photo:
    return Photo(
        row["id"], row["path"], _size(row), row["bytes"], row["digest"], row["problem"], bool(row["skipped"]),
        row["revision"],
    )  # fmt: skip


def _size(row: sqlite3.Row) -> tuple[int, int] | None:
    return None if row["width"] is None else (row["height"], row["width"])


def _box(row: sqlite3.Row) -> PixelBox | None:
    return None if row["x0"] is None else (row["x0"], row["y0"], row["x1"], row["y1"])
