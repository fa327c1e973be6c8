"""The project file: created whole or not at all, refused without a change, migrated, and safe when the disk is full."""

import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.edited_project import files_of

from transformatcher.annotation import database as module
from transformatcher.annotation.database import APPLICATION_ID, MIGRATIONS, Database
from transformatcher.errors import InputError

SECOND = "ALTER TABLE photo ADD COLUMN rating INTEGER NOT NULL DEFAULT 5;"


def photos_in(database: Database) -> list[str]:
    return [row["path"] for row in database.rows("SELECT path FROM photo ORDER BY id")]


def add_photo(database: Database, path: str) -> int:
    return database.run("INSERT INTO photo (path, bytes, mtime_ns) VALUES (?, 1, 1)", path)


def make(path: Path, *paths: str) -> Path:
    database = Database(path)
    with database.transaction():
        for one in paths:
            add_photo(database, one)
    database.close()
    return path


def killed(path: Path, *statements: str) -> None:
    """Write in a process that ends without closing the file, so that the last changes are in the WAL alone."""
    code = f"""
import os, sqlite3
connection = sqlite3.connect({str(path)!r}, isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
for statement in {statements!r}:
    connection.execute(statement)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert path.with_name(path.name + "-wal").stat().st_size > 0


# ---------------------------------------------------------------- create and open


def test_a_new_project_is_one_file_that_says_what_it_is(tmp_path: Path) -> None:
    make(tmp_path / "a.sqlite", "x.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.sqlite"]
    connection = sqlite3.connect(tmp_path / "a.sqlite")
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    database = Database(make(tmp_path / "a.sqlite", "x.png", "y.png"))
    assert photos_in(database) == ["x.png", "y.png"]
    assert database.row("PRAGMA synchronous")[0] == 2  # type: ignore[index]
    assert database.row("PRAGMA foreign_keys")[0] == 1  # type: ignore[index]
    database.close()


@pytest.mark.parametrize("name", ["with space.sqlite", "100%?.sqlite", "a#b.sqlite", "größe.sqlite", "\udcff.sqlite"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    database = Database(make(tmp_path / name, "x.png"))
    assert photos_in(database) == ["x.png"]
    database.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_project_may_be_reached_through_a_link(tmp_path: Path) -> None:
    make(tmp_path / "a.sqlite", "x.png")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "b.sqlite").symlink_to(tmp_path / "a.sqlite")
    database = Database(tmp_path / "link" / "b.sqlite")
    with database.transaction():
        add_photo(database, "y.png")
    database.close()
    database = Database(tmp_path / "a.sqlite")
    assert photos_in(database) == ["x.png", "y.png"]
    database.close()


def test_a_failed_creation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE half (a); CREATE TABLE half (a);"))
    with pytest.raises(InputError, match=r"a\.sqlite: the project cannot be created \(table half already exists\)"):
        Database(tmp_path / "a.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_creation_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite.new").write_bytes(b"half")
    make(tmp_path / "a.sqlite", "x.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.sqlite"]


def test_an_empty_file_becomes_a_project(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").touch()
    make(tmp_path / "a.sqlite", "x.png")


def test_no_place_for_a_project(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder; a project is a file"):
        Database(tmp_path)
    with pytest.raises(InputError, match=r"b/a\.sqlite: cannot be created, .* is not a folder"):
        Database(tmp_path / "b" / "a.sqlite")
    with pytest.raises(InputError, match=r"a\.sqlite: no such project"):
        Database(tmp_path / "a.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_an_old_sqlite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    with pytest.raises(InputError, match=r"needs SQLite 3\.38 or newer"):
        Database(tmp_path / "a.sqlite")


# ---------------------------------------------------------------- refused, and left as it is


def no_sqlite(path: Path) -> None:
    path.write_bytes(b"\xff\xd8\xff\xe0 this is a photo" * 300)


def short(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0")


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE person (name)")
    connection.close()


def foreign_in_wal(path: Path) -> None:
    killed(path, "CREATE TABLE person (name)", "INSERT INTO person VALUES ('x')")


def newer(path: Path) -> None:
    connection = sqlite3.connect(make(path))
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def newer_in_wal(path: Path) -> None:
    killed(make(path), "PRAGMA user_version = 99", "CREATE TABLE later (a)")


def newer_in_wal_alone(path: Path) -> None:
    newer_in_wal(path)
    path.with_name(path.name + "-shm").unlink()


def damaged(path: Path) -> None:
    make(path, *(f"{number:04d}{'x' * 40}.png" for number in range(500)))
    data = bytearray(path.read_bytes())
    data[5 * 4096 :] = bytes(value ^ 0x5A for value in data[5 * 4096 :])
    path.write_bytes(data)


def cut(path: Path) -> None:
    make(path, *(f"{number:04d}{'x' * 40}.png" for number in range(500)))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def damaged_with_wal(path: Path) -> None:
    cut(path)
    wal, shm = path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")
    other = path.parent / "other" / path.name
    other.parent.mkdir()
    killed(make(other), "PRAGMA user_version = 1")
    shutil.copy(other.with_name(other.name + "-wal"), wal)
    shutil.rmtree(other.parent)
    assert not shm.exists()
    data = bytearray(wal.read_bytes())
    data[60:] = b"\x5a" * (len(data) - 60)
    wal.write_bytes(data)


NOT_OURS = "a.sqlite: not a project of transformatcher, or damaged; it is left as it is"


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_sqlite, NOT_OURS),
        (short, NOT_OURS),
        (foreign, "a.sqlite: an SQLite file, but not a project of transformatcher; it is left as it is"),
        (foreign_in_wal, "a.sqlite: an SQLite file, but not a project of transformatcher; it is left as it is"),
        (newer, r"a.sqlite: written by a newer version of transformatcher \(schema 99, here 1\); it is left as it is"),
        (newer_in_wal, r"a.sqlite: written by a newer version of transformatcher \(schema 99, here 1\)"),
        (newer_in_wal_alone, r"a.sqlite: written by a newer version of transformatcher \(schema 99, here 1\)"),
        (damaged, r"(?s)a.sqlite: this project is damaged \(.*\); it is left as it is, go back to a copy"),
        (cut, r"(?s)a.sqlite: this project is damaged \(.*\); it is left as it is, go back to a copy"),
        (damaged_with_wal, r"(?s)a.sqlite: this project is damaged \(.*\); it is left as it is, go back to a copy"),
    ],
)
def test_what_is_no_sound_project_is_named_and_left_bit_for_bit(
    tmp_path: Path, spoil: Callable[[Path], None], message: str, read_only: bool
) -> None:
    spoil(tmp_path / "a.sqlite")
    before = files_of(tmp_path)
    with pytest.raises(InputError, match=message):
        Database(tmp_path / "a.sqlite", read_only=read_only)
    after = files_of(tmp_path)
    assert before.keys() == after.keys()
    for name in before.keys() - {"a.sqlite-shm"}:  # shared memory, which SQLite fills anew after a process was killed
        assert before[name] == after[name]


def test_a_wal_without_its_project_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    killed(make(tmp_path / "a.sqlite"), "INSERT INTO photo (path, bytes, mtime_ns) VALUES ('x', 1, 1)")
    (tmp_path / "a.sqlite").unlink()
    before = files_of(tmp_path)
    with pytest.raises(InputError, match=r"a\.sqlite-wal: the last changes of a project whose file is gone"):
        Database(tmp_path / "a.sqlite")
    assert files_of(tmp_path) == before


def test_what_a_killed_process_wrote_is_there(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite", "x.png")
    killed(path, "INSERT INTO photo (path, bytes, mtime_ns) VALUES ('y.png', 1, 1)")
    reader = Database(path, read_only=True)
    assert photos_in(reader) == ["x.png", "y.png"]
    reader.close()
    database = Database(path)
    assert photos_in(database) == ["x.png", "y.png"]
    database.close()
    assert [one.name for one in tmp_path.iterdir()] == ["a.sqlite"]


def test_a_file_that_another_program_has_locked_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a.sqlite", "x.png")
    monkeypatch.setattr(module, "BUSY_S", 0.0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(InputError, match=r"another program is using it|database is locked"):
        Database(path)
    other.close()


# ---------------------------------------------------------------- migrations


def test_an_older_project_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a.sqlite", "x.png")
    monkeypatch.setattr(
        module, "MIGRATIONS", (*MIGRATIONS, SECOND, "CREATE TABLE third (a) STRICT;".replace("(a)", "(a TEXT)"))
    )
    database = Database(path)
    assert [tuple(row) for row in database.rows("SELECT path, rating FROM photo")] == [("x.png", 5)]
    assert database.rows("SELECT * FROM third") == []
    assert int.from_bytes(path.read_bytes()[60:64], "big") == 3  # in the file itself, for older programs to see
    database.close()
    Database(path).close()


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (f"{SECOND} CREATE TABLE other (a); CREATE TABLE other (a);", "table other already exists"),
        (f"{SECOND} INSERT INTO photo (path, bytes, mtime_ns) VALUES ('x.png', 1, 1);", "UNIQUE constraint failed"),
        (f"{SECOND} INSERT INTO instance (photo_id, category_id) VALUES (1, 7);", "refers to what is not there"),
    ],
)
def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str, problem: str
) -> None:
    path = make(tmp_path / "a.sqlite", "x.png")
    before = files_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(module, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE fine (a);", second))
        message = rf"a\.sqlite: cannot be brought from schema 1 to 3 \(.*{problem}.*\); it is left as it is"
        with pytest.raises(InputError, match=message):
            Database(path)
    assert files_of(tmp_path) == before
    database = Database(path)
    assert photos_in(database) == ["x.png"]
    database.close()


def test_a_migration_may_make_a_table_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a.sqlite", "x.png")
    database = Database(path)
    with database.transaction():
        database.run("INSERT INTO category (name) VALUES ('cat')")
        database.run("INSERT INTO instance (photo_id, category_id) VALUES (1, 1)")
    database.close()
    anew = """
        CREATE TABLE other (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL) STRICT;
        INSERT INTO other SELECT id, name FROM category; DROP TABLE category; ALTER TABLE other RENAME TO category;
    """
    monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, anew))
    database = Database(path)
    assert [row["name"] for row in database.rows("SELECT name FROM category")] == ["cat"]
    with pytest.raises(sqlite3.IntegrityError), database.transaction():
        database.run("DELETE FROM category")
    database.close()


def test_who_only_reads_does_not_migrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a.sqlite", "x.png")
    monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, SECOND))
    before = files_of(tmp_path)
    with pytest.raises(InputError, match=r"older version of transformatcher \(schema 1, here 2\); open it once with"):
        Database(path, read_only=True)
    assert before["a.sqlite"] == path.read_bytes()


# ---------------------------------------------------------------- transactions and threads


def add_and_fail(database: Database, first: str, *others: str) -> None:
    with database.transaction():
        add_photo(database, first)
        for path in others:
            with database.transaction():
                add_photo(database, path)
        raise ZeroDivisionError


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "a.sqlite")
    yield database
    database.close()


def test_a_transaction_is_stored_as_a_whole_or_not_at_all(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        add_and_fail(database, "x.png")
    assert photos_in(database) == []


def test_of_nested_transactions_the_inner_one_can_fail_alone(database: Database) -> None:
    with database.transaction():
        add_photo(database, "x.png")
        with pytest.raises(ZeroDivisionError):
            add_and_fail(database, "y.png", "z.png")
        with database.transaction():
            add_photo(database, "w.png")
    assert photos_in(database) == ["x.png", "w.png"]


def test_an_outer_transaction_takes_the_inner_one_back(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        add_and_fail(database, "x.png", "y.png")
    assert photos_in(database) == []


def test_nothing_is_written_outside_of_a_transaction(database: Database) -> None:
    with pytest.raises(RuntimeError, match="part of a transaction"):
        add_photo(database, "x.png")
    with pytest.raises(RuntimeError, match="part of a transaction"):
        database.run_many("INSERT INTO setting VALUES (?, ?)", [("a", "1")])


def test_threads_do_not_see_or_join_each_others_transactions(database: Database) -> None:
    seen: list[list[str]] = []
    errors: list[BaseException] = []

    def read() -> None:
        seen.append(photos_in(database))

    def write() -> None:
        try:
            add_photo(database, "y.png")
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=read), threading.Thread(target=write)]
    with suppress(ZeroDivisionError), database.transaction():
        add_photo(database, "x.png")
        for thread in threads:
            thread.start()
        threads[0].join(0.2)
        assert seen == []
        raise ZeroDivisionError
    for thread in threads:
        thread.join()
    assert seen == [[]]
    assert len(errors) == 1
    assert photos_in(database) == []


def test_many_threads_write_all_they_have(database: Database) -> None:
    def write(name: int) -> None:
        for number in range(20):
            with database.transaction():
                add_photo(database, f"{name}-{number}.png")

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(photos_in(database)) == 80


def test_a_reader_beside_the_writer_sees_one_state(database: Database) -> None:
    with database.transaction():
        add_photo(database, "x.png")
    reader = Database(database.path, read_only=True)
    with reader.reading():
        assert photos_in(reader) == ["x.png"]
        with database.transaction():
            add_photo(database, "y.png")
        assert photos_in(reader) == ["x.png"]
    assert photos_in(reader) == ["x.png", "y.png"]
    with pytest.raises(InputError, match="the project cannot be written"), reader.transaction():
        add_photo(reader, "z.png")
    reader.close()


def test_a_number_that_is_too_large_is_no_crash(database: Database) -> None:
    with pytest.raises(InputError, match="a number is too large"):
        database.row("SELECT * FROM photo WHERE id = ?", 2**70)


def test_a_closed_project_says_so(database: Database) -> None:
    database.close()
    with pytest.raises(InputError, match="closed"):
        photos_in(database)


# ---------------------------------------------------------------- a full disk


def fill(database: Database) -> None:
    with database.transaction():
        for number in range(2000):
            add_photo(database, f"{number}{'x' * 200}")


def fill_and_go_on(database: Database) -> None:
    with pytest.raises(InputError, match="full"):
        fill(database)
    add_photo(database, "y.png")


def test_a_full_disk_is_told_and_the_last_state_is_kept(database: Database) -> None:
    with database.transaction():
        add_photo(database, "x.png")
    pages = database.row("PRAGMA page_count")[0]  # type: ignore[index]
    database.row(f"PRAGMA max_page_count = {pages}")
    message = (
        r"a\.sqlite: the project cannot be written \(database or disk is full\); the last state is kept: make room"
    )
    for _ in range(2):
        with pytest.raises(InputError, match=message), database.transaction():
            fill(database)
        assert photos_in(database) == ["x.png"]
    database.row("PRAGMA max_page_count = 100000")
    with database.transaction():
        add_photo(database, "y.png")
    assert photos_in(database) == ["x.png", "y.png"]
    assert tuple(database.row("PRAGMA quick_check") or ()) == ("ok",)


def test_nothing_is_stored_after_the_disk_was_full_in_the_middle(database: Database) -> None:
    """SQLite has taken all back by itself then; what comes after must not be stored on its own."""
    pages = database.row("PRAGMA page_count")[0]  # type: ignore[index]
    database.row(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(RuntimeError, match="part of a transaction"), database.transaction():
        fill_and_go_on(database)
    assert photos_in(database) == []


WRITES = """
import resource, signal, sys
from pathlib import Path
from transformatcher.annotation.database import Database
from transformatcher.errors import InputError
database = Database(Path(sys.argv[1]))
def add(name):
    with database.transaction():
        database.run("INSERT INTO photo (path, bytes, mtime_ns) VALUES (?, 1, 1)", name)
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limit[1]))
stored = 0
try:
    while stored < 10_000:
        add(f"{stored}-{'x' * 2000}")
        stored += 1
except InputError as error:
    print(error)
assert len(database.rows("SELECT 1 FROM photo")) == stored
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
add("last")
print(stored)
database.close()
"""


def test_a_file_that_cannot_grow_is_told_and_works_again_afterwards(tmp_path: Path) -> None:
    pytest.importorskip("resource")  # Windows has no limits
    path = tmp_path / "a.sqlite"
    done = subprocess.run([sys.executable, "-c", WRITES, path], capture_output=True, text=True, check=True)
    message, stored = done.stdout.splitlines()
    assert message.startswith(f"{path}: the project cannot be written (")
    assert "the last state is kept" in message
    database = Database(path)
    assert 0 < int(stored) < 10_000
    assert photos_in(database) == [*(f"{number}-{'x' * 2000}" for number in range(int(stored))), "last"]
    assert tuple(database.row("PRAGMA quick_check") or ()) == ("ok",)
    database.close()
