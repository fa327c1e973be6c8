"""DeepLabCut's tables, read by hand, by pandas as DeepLabCut does, and by sleap-io."""

import csv
from pathlib import Path

import numpy as np
import pytest
from helpers.annotation_project import bicycles, mark, open_project, photo_id

from transformatcher.annotation import edits
from transformatcher.annotation.formats.export import export_project

TABLE = Path("bicycle/labeled-data/a/CollectedData_transformatcher.csv")


def export(tmp_path: Path) -> Path:
    with bicycles(tmp_path / "photos") as project:
        export_project(project, "deeplabcut", tmp_path / "dlc")
    return tmp_path / "dlc"


def test_headers_and_rows(tmp_path: Path):
    out = export(tmp_path)
    with (out / TABLE).open(newline="") as file:
        rows = list(csv.reader(file))
    parts = ["left pedal", "left pedal", "right pedal", "right pedal", "saddle", "saddle"]
    assert rows == [
        ["scorer", "", "", *["transformatcher"] * 6],
        ["bodyparts", "", "", *parts],
        ["coords", "", "", *["x", "y"] * 3],
        ["labeled-data", "a", "1.jpg", "", "", "", "", "50.0", "20.0"],
        ["labeled-data", "a", "1_2.png", "20.5", "30.0", "40.0", "30.25", "", ""],
    ]
    frames = out / "bicycle" / "labeled-data"
    assert (frames / "a" / "1_2.png").samefile(tmp_path / "photos" / "a" / "1.png")
    assert sorted(path.name for path in frames.iterdir()) == ["a", "images"]
    assert (out / "bird" / "labeled-data" / "images").is_dir()


def test_what_gets_lost_is_named(tmp_path: Path):
    with open_project(tmp_path / "photos", ("1.png", "a__b/1.png", "a/b/1.png")) as project:
        cat = edits.add_category(project, "cat/dog", ["nose", "tail"])
        same = edits.add_category(project, "cat:dog", ["nose"])
        for path in ("1.png", "a__b/1.png", "a/b/1.png"):
            item = edits.add_instance(project, photo_id(project, path), cat.id, (0.0, 0.0, 50.0, 50.0))
            mark(project, item, {"nose": (1, (10, 10))})
        second = edits.add_instance(project, photo_id(project, "1.png"), cat.id)
        mark(project, second, {"nose": (2, (60, 60)), "tail": (2, (70, 70))})
        mark(project, edits.add_instance(project, photo_id(project, "1.png"), same.id), {"nose": (2, (5, 5))})
        summary = export_project(project, "deeplabcut", tmp_path / "dlc")
    assert summary.notes == [
        "1.png: of 2 objects (cat/dog), the one with most points is kept",
        "DeepLabCut has no boxes",
        "DeepLabCut has no hidden points: they look like visible ones",
    ]
    tables = sorted(path.relative_to(tmp_path / "dlc").parent.as_posix() for path in (tmp_path / "dlc").rglob("*.csv"))
    assert tables == [
        "cat_dog", f"cat_dog-{same.id}", f"cat_dog-{same.id}/labeled-data/photos", "cat_dog/labeled-data/a__b",
        "cat_dog/labeled-data/photos",
    ]  # fmt: skip
    lines = (tmp_path / "dlc/cat_dog/labeled-data/a__b/CollectedData_transformatcher.csv").read_text().splitlines()[3:]
    assert [line.split(",")[2] for line in lines] == ["1.png", "1_2.png"]
    photos = (tmp_path / "dlc/cat_dog/labeled-data/photos/CollectedData_transformatcher.csv").read_text().splitlines()
    assert photos[3] == "labeled-data,photos,1.png,60.0,60.0,70.0,70.0"


def test_pandas_reads_it_as_deeplabcut_does(tmp_path: Path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed; make formats")
    table = pandas.read_csv(export(tmp_path) / TABLE, header=[0, 1, 2], index_col=[0, 1, 2])
    assert table.columns.names == ["scorer", "bodyparts", "coords"]
    assert table.index.tolist() == [("labeled-data", "a", "1.jpg"), ("labeled-data", "a", "1_2.png")]
    pedal = table["transformatcher"]["right pedal"]
    assert np.array_equal(pedal.to_numpy(), [[np.nan, np.nan], [40, 30.25]], equal_nan=True)


def test_sleap_io_reads_it(tmp_path: Path):
    sleap_io = pytest.importorskip("sleap_io", reason="sleap-io is not installed; make formats")
    labels = sleap_io.load_dlc(str(export(tmp_path) / TABLE))
    assert labels.skeletons[0].node_names == ["left pedal", "right pedal", "saddle"]
    frames = {Path(f.video.filename[f.frame_idx]).name: f.instances[0].numpy() for f in labels.labeled_frames}
    wanted = [[20.5, 30], [40, 30.25], [np.nan, np.nan]]
    assert np.array_equal(frames["1_2.png"], wanted, equal_nan=True)
