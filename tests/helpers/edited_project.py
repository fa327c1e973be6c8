"""Small annotation projects, what the predictor does to them, and what a person has said in them."""

from pathlib import Path
from typing import Any

from PIL import Image

from transformatcher.annotation.edits import add_category
from transformatcher.annotation.project import Project
from transformatcher.annotation.records import Category
from transformatcher.annotation.scan import identify_photo, scan_photos

SIZE = (60, 80)  # (h, w)


def write_photo(path: Path, colour: int = 0, size: tuple[int, int] = SIZE) -> Path:
    """A photo of one colour; others have other bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size[1], size[0]), (colour, 255 - colour, 0)).save(path)
    return path


def open_project(folder: Path, n_photos: int = 3, **options: Any) -> Project:
    """A project whose photos, 1.png to n.png, are scanned and identified; it is to be closed."""
    for number in range(1, n_photos + 1):
        if not (folder / f"{number}.png").exists():
            write_photo(folder / f"{number}.png", number)
    project = Project(folder, **options)
    scan_photos(project)
    for photo in project.photos():
        identify_photo(project, photo)
    return project


def cat_of(project: Project) -> Category:
    """The category of most tests."""
    return project.category_named("cat") or add_category(project, "cat", ["left eye", "right eye", "nose"], [(0, 1)])


def add_automatic(project: Project, photo_id: int, category_id: int) -> int:
    """An object that the program adds itself."""
    with project.changing([photo_id], computed=True):
        return project.database.run("INSERT INTO instance (photo_id, category_id) VALUES (?, ?)", photo_id, category_id)


def predict(project: Project, instance_id: int, confidence: float = 0.9, reference: int | None = None) -> None:
    """Predictions of all keypoints of an object, as the predictor writes them."""
    run, instance = project.database.run, project.instance(instance_id)
    with project.changing([instance.photo_id], computed=True):
        run("DELETE FROM prediction WHERE instance_id = ?", instance_id)
        for number, keypoint in enumerate(project.category(instance.category_id).keypoints):
            run(
                "INSERT INTO prediction (instance_id, keypoint_id, x, y, confidence, reference, mirrored) "
                "VALUES (?, ?, ?, ?, ?, ?, 0)",
                instance_id, keypoint.id, 5.0 + number, 6.0, confidence, reference,
            )  # fmt: skip
        run("INSERT OR REPLACE INTO predicted VALUES (?, 'voters', 0.8, '2026-01-01')", instance_id)
        if reference is not None:
            run("INSERT OR REPLACE INTO vote VALUES (?, ?, 'state', x'00', 0.8, 0)", instance_id, reference)


def said(project: Project) -> dict[str, Any]:
    """All that a person has said, without what the program can compute again."""

    def table(query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in project.database.rows(query)]

    return {
        "category": table("SELECT id, name FROM category ORDER BY id"),
        "keypoint": table("SELECT id, category_id, position, name, twin FROM keypoint ORDER BY id"),
        "edge": table("SELECT a, b FROM edge ORDER BY a, b"),
        "skipped": table("SELECT id FROM photo WHERE skipped ORDER BY id"),
        "instance": table(
            """SELECT id, photo_id, category_id, x0, y0, x1, y1, reviewed_at FROM instance i WHERE x0 IS NOT NULL
               OR reviewed_at IS NOT NULL OR EXISTS (SELECT 1 FROM mark m WHERE m.instance_id = i.id) ORDER BY id"""
        ),
        "mark": table("SELECT * FROM mark ORDER BY instance_id, keypoint_id"),
    }


def check_whole(project: Project) -> None:
    """Nothing refers to what is not there, and the file is sound."""
    row = project.database.row
    assert project.database.rows("PRAGMA foreign_key_check") == []
    assert tuple(row("PRAGMA quick_check") or ()) == ("ok",)
    mixed = """SELECT m.* FROM {} m JOIN instance i ON i.id = m.instance_id JOIN keypoint k ON k.id = m.keypoint_id
               WHERE k.category_id != i.category_id"""
    assert [dict(r) for table in ("mark", "prediction") for r in project.database.rows(mixed.format(table))] == []


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of all files in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
