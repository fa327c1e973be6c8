"""Project file ↔ SQLite connection: schema, migrations, transactions, and errors that name the file."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from transformatcher.errors import InputError
from transformatcher.files import UNFINISHED

APPLICATION_ID = 0x544D4B50  # "TMKP": what file(1) and we know the file by
BUSY_S = 10.0  # to wait for another process that is writing
OLDEST_SQLITE = (3, 38)  # strict tables, and JSON as a part of it
MAGIC = b"SQLite format 3\0"  # the first bytes of a file; version and application id are numbers at these places:
VERSION_AT, APPLICATION_AT, HEADER = 60, 68, 100

# One entry for each version of the schema; a project of version n is brought up to date by the entries after the n-th.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE setting (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    CREATE TABLE category (
      id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, position INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE keypoint (
      id INTEGER PRIMARY KEY AUTOINCREMENT, category_id INTEGER NOT NULL REFERENCES category,
      position INTEGER NOT NULL, name TEXT NOT NULL, twin INTEGER REFERENCES keypoint DEFERRABLE INITIALLY DEFERRED
    ) STRICT;
    CREATE INDEX keypoint_category ON keypoint (category_id);
    CREATE TABLE edge (
      a INTEGER NOT NULL REFERENCES keypoint, b INTEGER NOT NULL REFERENCES keypoint, PRIMARY KEY (a, b)
    ) STRICT;
    CREATE TABLE photo (
      id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, width INTEGER, height INTEGER,
      bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, digest TEXT, problem TEXT,
      skipped INTEGER NOT NULL DEFAULT 0, revision INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX photo_revision ON photo (revision);
    CREATE TABLE instance (
      id INTEGER PRIMARY KEY AUTOINCREMENT, photo_id INTEGER NOT NULL REFERENCES photo,
      category_id INTEGER NOT NULL REFERENCES category,
      x0 REAL, y0 REAL, x1 REAL, y1 REAL, reviewed_at TEXT,
      automatic INTEGER NOT NULL DEFAULT 0  -- added by the program, which may change its category until it has marks
    ) STRICT;
    CREATE INDEX instance_photo ON instance (photo_id);
    CREATE TABLE mark (
      instance_id INTEGER NOT NULL REFERENCES instance, keypoint_id INTEGER NOT NULL REFERENCES keypoint,
      visibility INTEGER NOT NULL CHECK (visibility IN (0, 1, 2)), x REAL, y REAL, source TEXT NOT NULL,
      at TEXT NOT NULL, PRIMARY KEY (instance_id, keypoint_id),
      CHECK ((visibility = 0) = (x IS NULL) AND (x IS NULL) = (y IS NULL))
    ) STRICT;
    -- What the model finds. All of it can be computed again, so it is not in the journal.
    CREATE TABLE prediction (
      instance_id INTEGER NOT NULL REFERENCES instance ON DELETE CASCADE,
      keypoint_id INTEGER NOT NULL REFERENCES keypoint ON DELETE CASCADE,
      x REAL NOT NULL, y REAL NOT NULL, confidence REAL NOT NULL, reference INTEGER, mirrored INTEGER NOT NULL,
      PRIMARY KEY (instance_id, keypoint_id)
    ) STRICT;
    CREATE TABLE predicted (
      instance_id INTEGER PRIMARY KEY REFERENCES instance ON DELETE CASCADE,
      voters TEXT NOT NULL, same_kind REAL, at TEXT NOT NULL
    ) STRICT;
    CREATE TABLE vote (
      instance_id INTEGER NOT NULL REFERENCES instance ON DELETE CASCADE,
      reference_id INTEGER NOT NULL REFERENCES instance ON DELETE CASCADE,
      state TEXT NOT NULL, points BLOB NOT NULL, same_kind REAL, mirrored INTEGER NOT NULL,
      PRIMARY KEY (instance_id, reference_id)
    ) STRICT;
    CREATE INDEX vote_reference ON vote (reference_id);
    CREATE TABLE descriptor (
      photo_id INTEGER PRIMARY KEY REFERENCES photo ON DELETE CASCADE, model TEXT NOT NULL, vector BLOB NOT NULL
    ) STRICT;
    -- Every change of a person, to be undone and done again.
    CREATE TABLE action (
      id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, at TEXT NOT NULL,
      state TEXT NOT NULL CHECK (state IN ('done', 'undone', 'dropped'))
    ) STRICT;
    CREATE INDEX action_state ON action (state);
    CREATE TABLE change (
      action_id INTEGER NOT NULL REFERENCES action, number INTEGER NOT NULL, "table" TEXT NOT NULL,
      key TEXT NOT NULL, before TEXT, after TEXT, PRIMARY KEY (action_id, number)
    ) STRICT;
    """,
)

Row = dict[str, Any]


class NotWrittenError(InputError):
    """The project could not be written, as on a full disk; its last state is kept."""


class Database:
    """An open project file. Threads may share it; each transaction is one at a time.

    Args:
        path: the file; it is created, with an empty schema, if it does not exist.
        read_only: nothing is written, not even migrations.

    Raises:
        InputError: if the file is not a project, is damaged, or was written by a newer version. It is left as it is.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.lock = RLock()
        self.is_writing = False  # inside a transaction: what is read may still be taken back. For who has the lock.
        self._file = path.resolve()  # SQLite's own files lie beside it
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            needed = ".".join(map(str, OLDEST_SQLITE))
            raise InputError(f"{path}: needs SQLite {needed} or newer; this Python has {sqlite3.sqlite_version}")
        if path.is_dir():
            raise InputError(f"{path}: a folder; a project is a file")
        new = not path.exists() or path.stat().st_size == 0
        if new and read_only:
            raise InputError(f"{path}: {'an empty file, not a project' if path.exists() else 'no such project'}")
        if new:
            self._create()
        elif not self._has("-journal"):  # what was interrupted on a file system without WAL is put right when opened
            self._inspect(read_only=read_only)
        options = "mode=ro" if read_only else "mode=rw"
        if read_only and not self._has("-wal") and not os.access(self._file.parent, os.W_OK):
            options += "&immutable=1"  # SQLite cannot make the files that it shares with a process that writes
        with self._errors("opened"):
            self._connection = self._connect(options)
        try:
            self._prepare(read_only=read_only)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Write everything into the one file and close it."""
        with self.lock:
            self._connection.close()

    # ------------------------------------------------------------ reading and writing

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """All rows of a query."""
        with self.lock, self._errors("read"):
            return self._connection.execute(query, values).fetchall()

    def row(self, query: str, *values: Any) -> sqlite3.Row | None:
        """The first row of a query."""
        with self.lock, self._errors("read"):
            return self._connection.execute(query, values).fetchone()

    def run(self, query: str, *values: Any) -> int:
        """Run one statement inside a transaction; returns the id of a new row."""
        with self._inside():
            return self._connection.execute(query, values).lastrowid or 0

    def run_many(self, query: str, values: Sequence[Sequence[Any]]) -> None:
        """Run one statement for many rows, inside a transaction."""
        with self._inside():
            self._connection.executemany(query, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written inside is stored as a whole, or not at all if an error is raised. They can be nested."""
        with self.lock, self._errors("written"):
            outer, self.is_writing = self.is_writing, True
            begin, commit, rollback = (
                ("SAVEPOINT nested", "RELEASE nested", ("ROLLBACK TO nested", "RELEASE nested"))
                if self._connection.in_transaction
                else ("BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",))
            )
            try:
                self._connection.execute(begin)
                yield
                self._connection.execute(commit)
            except BaseException:
                for statement in rollback:
                    if self._connection.in_transaction:  # SQLite ends it by itself when the disk is full
                        self._connection.execute(statement)
                raise
            finally:
                self.is_writing = outer

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All queries inside see the same state, whatever other threads and processes write meanwhile."""
        with self.lock:
            inside = self._connection.in_transaction
            with self._errors("read"):
                if not inside:
                    self._connection.execute("BEGIN")
                try:
                    yield
                finally:
                    if not inside and self._connection.in_transaction:
                        self._connection.execute("COMMIT")

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with self.lock, self._errors("written"):
            if not self._connection.in_transaction:
                raise RuntimeError("what is written is part of a transaction")
            yield

    # ------------------------------------------------------------ opening

    def _create(self) -> None:
        """Make the file under another name, then give it its own: nobody ever finds half a project."""
        for suffix in ("-wal", "-journal"):
            if self._has(suffix):
                raise InputError(
                    f"{self.path}{suffix}: the last changes of a project whose file is gone; put that file back, or "
                    "move this one away"
                )
        if not self._file.parent.is_dir():
            raise InputError(f"{self.path}: cannot be created, {self.path.parent} is not a folder")
        unfinished = self._file.with_name(self._file.name + UNFINISHED)
        try:
            unfinished.unlink(missing_ok=True)
            with self._errors("created"), closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
                _migrate(connection, 0)
                connection.execute("PRAGMA journal_mode = WAL")
            unfinished.replace(self._file)
        except OSError as error:
            raise InputError(f"{self.path}: the project cannot be created ({error.strerror})") from error
        finally:
            unfinished.unlink(missing_ok=True)

    def _inspect(self, *, read_only: bool) -> None:
        """Refuse what is not a sound project, without a change to the file or those beside it."""
        try:
            with self._file.open("rb") as file:
                header = file.read(HEADER)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror})") from error
        if not header.startswith(MAGIC) or len(header) < HEADER:
            raise InputError(f"{self.path}: not a project of transformatcher, or damaged; it is left as it is")
        self._recognise(*(int.from_bytes(header[at : at + 4], "big") for at in (APPLICATION_AT, VERSION_AT)))
        index = self._beside("-shm")
        with_changes, indexed = self._has("-wal"), index.exists()
        # SQLite makes no files beside one that it takes for immutable, but then it does not see the changes in the WAL.
        options = "mode=ro" if with_changes else "mode=ro&immutable=1"
        try:
            with self._errors("opened"), closing(self._connect(options)) as connection:
                self._check(connection)
        except BaseException:
            if with_changes and not indexed:
                index.unlink(missing_ok=True)
            if read_only and not with_changes and self._has("-wal"):  # another process is writing since a moment ago
                return self._inspect(read_only=True)
            raise

    def _check(self, connection: sqlite3.Connection) -> None:
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            self._recognise(application, version)
            (damage,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            if "locked" in str(error):
                raise InputError(f"{self.path}: another program is using it; close that first") from error
            raise InputError(f"{self.path}: this project is damaged ({error}); {_RECOVER}") from error
        if damage != "ok":
            damage = damage.removeprefix("*** in database main ***\n")
            raise InputError(f"{self.path}: this project is damaged ({damage}); {_RECOVER}")

    def _recognise(self, application: int, version: int) -> None:
        if application != APPLICATION_ID:
            raise InputError(f"{self.path}: an SQLite file, but not a project of transformatcher; it is left as it is")
        if version > len(MIGRATIONS):
            raise InputError(
                f"{self.path}: written by a newer version of transformatcher (schema {version}, here "
                f"{len(MIGRATIONS)}); it is left as it is, update transformatcher"
            )

    def _prepare(self, *, read_only: bool) -> None:
        self._connection.row_factory = sqlite3.Row
        if self._has("-journal"):
            self._check(self._connection)
        with self._errors("opened"):
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        old = version < len(MIGRATIONS)
        if old and read_only:
            raise InputError(
                f"{self.path}: written by an older version of transformatcher (schema {version}, here "
                f"{len(MIGRATIONS)}); open it once with transformatcher annotate"
            )
        if read_only:
            return
        with self._errors("opened"):
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")  # what a person did survives a power cut
        if old:
            try:
                _migrate(self._connection, version)
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # older programs see the version
            except sqlite3.Error as error:
                raise InputError(
                    f"{self.path}: cannot be brought from schema {version} to {len(MIGRATIONS)} ({error}); it is left "
                    "as it is"
                ) from error
        self._connection.execute("PRAGMA foreign_keys = ON")

    def _connect(self, options: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self._file.as_uri()}?{options}", uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )

    def _beside(self, suffix: str) -> Path:
        return self._file.with_name(self._file.name + suffix)

    def _has(self, suffix: str) -> bool:
        """Whether SQLite's file with this suffix is there and holds something."""
        path = self._beside(suffix)
        return path.exists() and path.stat().st_size > 0

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # a mistake of ours, not of the file
        except OverflowError as error:
            if "SQLite" not in str(error):
                raise
            raise InputError(f"{self.path}: a number is too large for a project ({error})") from error
        except sqlite3.DatabaseError as error:
            kept = "; the last state is kept" if what == "written" else ""
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                kept += ": make room on the disk and do it again" if kept else "; make room on the disk"
            kind = NotWrittenError if what == "written" else InputError
            raise kind(f"{self.path}: the project cannot be {what} ({error}){kept}") from error


_RECOVER = "it is left as it is, go back to a copy of it or recover what is readable with: sqlite3 FILE .recover"


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring the schema from a version up to date, as a whole or not at all."""
    connection.execute("PRAGMA foreign_keys = OFF")  # tables may be made anew; what they hold is checked at the end
    header = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {len(MIGRATIONS)};"
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {' '.join(MIGRATIONS[version:])} {header}")
        if broken := connection.execute("PRAGMA foreign_key_check").fetchone():
            raise sqlite3.IntegrityError(f"row {broken[1]} of {broken[0]} refers to what is not there")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
