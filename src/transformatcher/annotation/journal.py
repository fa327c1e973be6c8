"""Changes of rows → an action in the journal, which can be undone and done again, also after a restart."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from transformatcher.annotation.database import Database, Row

# The tables that actions change, with the columns of their keys.
KEYS = {
    "category": ("id",),
    "keypoint": ("id",),
    "edge": ("a", "b"),
    "photo": ("id",),
    "instance": ("id",),
    "mark": ("instance_id", "keypoint_id"),
}
# The rows that refer to a row of a table, and that must go before it. (Those of what is computed go by themselves.)
REFERRING = {
    "category": (("instance", "category_id"),),
    "keypoint": (("mark", "keypoint_id"),),
    "instance": (("mark", "instance_id"),),
}


def now() -> str:
    """The time in UTC, as the project stores it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Change:
    """A row before and after a change, with the columns that changed; None where there is no row."""

    table: str
    key: Row
    before: Row | None
    after: Row | None


@dataclass
class Action:
    """What a person does at once. Its methods change rows and remember how they were."""

    database: Database
    changes: list[Change] = field(default_factory=list)

    def insert(self, table: str, **values: Any) -> int:
        """Add a row; returns its id."""
        row_id = _insert(self.database, table, values)
        key = {name: values.get(name, row_id) for name in KEYS[table]}
        self.changes.append(Change(table, key, None, key | values))
        return row_id

    def update(self, table: str, key: Mapping[str, Any], **values: Any) -> None:
        """Change columns of a row; those that are the same already are left out."""
        row = _find(self.database, table, key)
        assert row is not None
        changed = {name: value for name, value in values.items() if row[name] != value}
        if changed:
            _update(self.database, table, key, changed)
            before = {name: row[name] for name in changed}
            self.changes.append(Change(table, dict(key), before, changed))

    def put(self, table: str, key: Mapping[str, Any], **values: Any) -> None:
        """Add the row with this key, or change it if it is there."""
        if _find(self.database, table, key) is None:
            self.insert(table, **key, **values)
        else:
            self.update(table, key, **values)

    def delete(self, table: str, **key: Any) -> None:
        """Remove a row, if it is there."""
        if (row := _find(self.database, table, key)) is not None:
            _delete(self.database, table, key)
            self.changes.append(Change(table, key, row, None))


class Journal:
    """The actions of a project.

    The program itself adds objects that it looks for, and guesses their category until a person marks them. That is no
    action, but actions build on it. So an action notes the categories of its objects; and what the program has added
    becomes a part of the action whose undoing takes it away, so that doing it again brings it back.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._action: Action | None = None  # that is being done, by the thread that has the database's lock

    @contextmanager
    def action(self, name: str) -> Iterator[Action]:
        """Do something that can be undone: all of it is stored, or nothing if an error is raised.

        Actions that were undone before it cannot be done again afterwards. An action inside another is a part of it.

        Example:
            >>> with journal.action("move a point") as action:
            ...     action.update("mark", {"instance_id": 1, "keypoint_id": 2}, x=3.0, y=4.0)
        """
        with self.database.transaction():
            if self._action is not None:
                before = len(self._action.changes)
                try:
                    yield self._action
                except BaseException:
                    del self._action.changes[before:]
                    raise
                return
            action = self._action = Action(self.database)
            try:
                yield action
            finally:
                self._action = None
            if action.changes:
                self.database.run("UPDATE action SET state = 'dropped' WHERE state = 'undone'")
                action_id = self.database.run("INSERT INTO action (name, at, state) VALUES (?, ?, 'done')", name, now())
                self._write(action_id, [*action.changes, *self._categories(action.changes)])

    def undo(self) -> tuple[str, list[Change]] | None:
        """Undo the last action; returns its name and changes, or None if there is nothing to undo."""
        with self.database.transaction():
            if (action := self._next("done")) is None:
                return None
            changes = [Change(c.table, c.key, c.after, c.before) for c in reversed(self._read(action["id"]))]
            self.database.run("PRAGMA defer_foreign_keys = ON")
            taken: list[Change] = []
            for change in changes:
                if change.after is None:
                    taken += self._take_referring(change)
                _apply(self.database, change)
            taken += self._take_strays(changes)
            self._write(
                action["id"], [Change(c.table, c.key, None, c.before) for c in reversed(taken) if c.after is None]
            )
            self.database.run("UPDATE action SET state = 'undone' WHERE id = ?", action["id"])
            return action["name"], changes + taken

    def redo(self) -> tuple[str, list[Change]] | None:
        """Do the action again that was undone last; returns its name and changes, or None."""
        with self.database.transaction():
            if (action := self._next("undone")) is None:
                return None
            changes = self._read(action["id"])
            self.database.run("PRAGMA defer_foreign_keys = ON")
            for change in changes:
                _apply(self.database, change)
            taken = self._take_strays(changes)  # nothing that can be done or undone refers to them
            self.database.run("UPDATE action SET state = 'done' WHERE id = ?", action["id"])
            return action["name"], changes + taken

    def names(self) -> tuple[str | None, str | None]:
        """The names of the actions that :meth:`undo` and :meth:`redo` would undo and do again."""
        undo, redo = self._next("done"), self._next("undone")
        return None if undo is None else undo["name"], None if redo is None else redo["name"]

    def _next(self, state: str) -> sqlite3.Row | None:
        """The last action that was done, or the first that was undone."""
        order = "DESC" if state == "done" else "ASC"
        return self.database.row(f"SELECT id, name FROM action WHERE state = ? ORDER BY id {order} LIMIT 1", state)

    def _read(self, action_id: int) -> list[Change]:
        return [
            Change(row["table"], json.loads(row["key"]), _load(row["before"]), _load(row["after"]))
            for row in self.database.rows("SELECT * FROM change WHERE action_id = ? ORDER BY number", action_id)
        ]

    def _write(self, action_id: int, changes: Sequence[Change]) -> None:
        """Add changes to an action."""
        last = self.database.row(
            "SELECT COALESCE(MAX(number), -1) AS number FROM change WHERE action_id = ?", action_id
        )
        assert last is not None
        self.database.run_many(
            'INSERT INTO change (action_id, number, "table", key, before, after) VALUES (?, ?, ?, ?, ?, ?)',
            [
                (action_id, n, c.table, json.dumps(c.key), _dump(c.before), _dump(c.after))
                for n, c in enumerate(changes, last["number"] + 1)
            ],
        )

    def _categories(self, changes: Sequence[Change]) -> list[Change]:
        """The categories of the objects that are changed, as changes that change nothing."""
        whole = {c.key["id"] for c in changes if c.table == "instance" and (c.before is None or c.after is None)}
        changed = {c.key["instance_id"] for c in changes if c.table == "mark"}
        changed |= {c.key["id"] for c in changes if c.table == "instance"}
        rows = self.database.rows(
            "SELECT id, category_id FROM instance WHERE id IN (SELECT value FROM json_each(?))",
            json.dumps(sorted(changed - whole)),
        )
        same = [{"category_id": row["category_id"]} for row in rows]
        return [Change("instance", {"id": row["id"]}, one, one) for row, one in zip(rows, same, strict=True)]

    def _take_referring(self, change: Change) -> list[Change]:
        """Delete what refers to a row that is to go, such as objects that the program added; returns the changes.

        An object that an earlier action knows only gets the category back that it had then.
        """
        taken = []
        for table, column in REFERRING.get(change.table, ()):
            for row in self.database.rows(f"SELECT * FROM {table} WHERE {column} = ?", change.key["id"]):
                one = Change(table, {name: row[name] for name in KEYS[table]}, dict(row), None)
                if table == "instance" and (category := self._noted_category(row["id"])) is not None:
                    one = replace(one, before={column: row[column]}, after={column: category})
                taken += [*self._take_referring(one), one] if one.after is None else [one]
                _apply(self.database, one)
        return taken

    def _take_strays(self, changes: Sequence[Change]) -> list[Change]:
        """Delete what the program added to a photo while its object, which has just come back, was gone."""
        taken = []
        for change in changes:
            if change.table != "instance" or change.before is not None or change.after is None:
                continue
            rows = self.database.rows(
                """SELECT * FROM instance i WHERE photo_id = ? AND id > ? AND x0 IS NULL AND reviewed_at IS NULL
                   AND NOT EXISTS (SELECT 1 FROM mark m WHERE m.instance_id = i.id)""",
                change.after["photo_id"], change.key["id"],
            )  # fmt: skip
            for row in rows:
                if not self._is_known(row["id"]):
                    taken.append(Change("instance", {"id": row["id"]}, dict(row), None))
                    _apply(self.database, taken[-1])
        return taken

    def _noted_category(self, instance_id: int) -> int | None:
        """The category that an object had in the last action that knows it, of those before the one to be undone."""
        row = self.database.row(
            """SELECT json_extract(c.after, '$.category_id') AS category_id FROM change c JOIN action a
               ON a.id = c.action_id WHERE c."table" = 'instance' AND c.key = ? AND a.state = 'done'
               AND a.id < (SELECT MAX(id) FROM action WHERE state = 'done')
               AND json_extract(c.after, '$.category_id') IS NOT NULL ORDER BY a.id DESC LIMIT 1""",
            json.dumps({"id": instance_id}),
        )
        return None if row is None else row["category_id"]

    def _is_known(self, instance_id: int) -> bool:
        """Whether an action has added an object, or has changed it and was not undone."""
        query = """SELECT 1 FROM change c JOIN action a ON a.id = c.action_id WHERE c."table" = 'instance'
                   AND c.key = ? AND (c.before IS NULL OR a.state = 'done') LIMIT 1"""
        return self.database.row(query, json.dumps({"id": instance_id})) is not None


def _apply(database: Database, change: Change) -> None:
    if change.after is None:
        _delete(database, change.table, change.key)
    elif change.before is None:
        _insert(database, change.table, change.after)
    else:
        _update(database, change.table, change.key, change.after)


# Names of tables and columns come from this package alone, values are always parameters.


def _find(database: Database, table: str, key: Mapping[str, Any]) -> Row | None:
    row = database.row(f"SELECT * FROM {table} WHERE {_conditions(key)}", *key.values())
    return None if row is None else dict(row)


def _insert(database: Database, table: str, values: Mapping[str, Any]) -> int:
    places = ", ".join("?" * len(values))
    return database.run(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", *values.values())


def _update(database: Database, table: str, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    settings = ", ".join(f"{name} = ?" for name in values)
    database.run(f"UPDATE {table} SET {settings} WHERE {_conditions(key)}", *values.values(), *key.values())


def _delete(database: Database, table: str, key: Mapping[str, Any]) -> None:
    database.run(f"DELETE FROM {table} WHERE {_conditions(key)}", *key.values())


def _conditions(key: Mapping[str, Any]) -> str:
    return " AND ".join(f"{name} = ?" for name in key)


def _dump(row: Row | None) -> str | None:
    return None if row is None else json.dumps(row)


def _load(text: str | None) -> Row | None:
    return None if text is None else json.loads(text)
