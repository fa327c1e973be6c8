"""SLEAP projects, read back by sleap-io."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.annotation_project import SIZE, bicycles
from PIL import Image

from transformatcher.annotation.formats.export import export_project
from transformatcher.annotation.scan import identify_photo, scan_photos

sleap_io: Any = pytest.importorskip("sleap_io", reason="sleap-io is not installed; make formats")
NAN = [np.nan, np.nan]


@pytest.fixture
def labels(tmp_path: Path) -> Any:
    with bicycles(tmp_path / "photos") as project:
        summary = export_project(project, "sleap", tmp_path / "out.slp", predictions="include")
        assert summary.notes == [
            "SLEAP has no boxes",
            "SLEAP has no “not there”: such keypoints look like those of which nothing is known",
            "SLEAP trains on one skeleton, this file has 2: one for each category",
        ]
        assert (summary.keypoints, summary.predicted) == (9, 3)
    return sleap_io.load_slp(str(tmp_path / "out.slp"))


def frames_of(labels: Any) -> dict[str, Any]:
    frames = {Path(frame.video.filename[frame.frame_idx]): frame for frame in labels.labeled_frames}
    return {f"{path.parent.name}/{path.name}": frame for path, frame in frames.items()}


def test_points_visible_hidden_and_not_there(labels: Any):
    frames = frames_of(labels)
    assert frames.keys() == {"a/1.png", "a/1.jpg", "images/2.png", "photos/3.png", "photos/4.png"}
    (whole,) = frames["a/1.png"].instances
    assert type(whole).__name__ == "Instance"
    assert np.array_equal(whole.numpy(invisible_as_nan=False), [[20.5, 30], [40, 30.25], NAN], equal_nan=True)
    assert whole.points["visible"].tolist() == [True, False, False]
    assert len(frames["photos/3.png"].instances) == 0
    assert [i.skeleton.name for i in frames["images/2.png"].instances] == ["bicycle", "bird"]


def test_predictions_have_scores(labels: Any):
    frames = frames_of(labels)
    marked, found = frames["a/1.jpg"].instances
    assert np.array_equal(marked.numpy(), [NAN, NAN, [50, 20]], equal_nan=True)
    assert np.array_equal(found.numpy(), [[30, 60], NAN, NAN], equal_nan=True)
    assert marked.from_predicted is found
    (guess,) = frames["photos/4.png"].instances
    assert guess.points["score"].tolist() == [0.75, 0.65]
    assert guess.score == pytest.approx(0.7)


def test_skeleton_edges_and_twins(labels: Any):
    bicycle, bird = labels.skeletons
    assert bicycle.node_names == ["left pedal", "right pedal", "saddle"]
    assert sorted(bicycle.edge_inds) == [(0, 2), (1, 2)]
    assert [{node.name for node in pair.nodes} for pair in bicycle.symmetries] == [{"left pedal", "right pedal"}]
    assert bird.symmetries == []


def test_photos_are_read_through_it_whatever_their_sizes(tmp_path: Path):
    with bicycles(tmp_path / "photos") as project:
        Image.new("RGB", (64, 32), "red").save(tmp_path / "photos" / "3.png")
        scan_photos(project)
        for photo in project.photos():
            identify_photo(project, photo)
        export_project(project, "sleap", tmp_path / "out.slp")
    labels = sleap_io.load_slp(str(tmp_path / "out.slp"))
    frames = frames_of(labels)
    assert frames["photos/3.png"].image.shape == (32, 64, 3)
    assert frames["a/1.png"].image.shape == (*SIZE, 3)
    assert len(labels.videos) == 2
