"""``calibrate``: predictions in, figures of reliability out."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.command import run

from transformatcher.inference.calibration import load_calibration
from transformatcher.inference.checkpoint import SHIPPED
from transformatcher.inference.cues import POINT_CUES
from transformatcher.run_folder import Run, write_run


@pytest.fixture
def predicted(tmp_path: Path) -> Path:
    """Points that are right where they are sharp; one pair has points that are absent, and dull."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "val"
    folder.mkdir()
    write_run(folder, Run("eval", {"benchmark": "pfpascal"}))
    lines = []
    for pair in range(20):
        peak = rng.uniform(0.01, 0.9, 10)
        right = rng.random(10) < peak
        lines.append({
            "name": str(pair), "category": "cat", "src_size": [100, 100], "trg_size": [100, 100],
            "kp_index": list(range(10)), "src_kps": [[1.0, 1.0]] * 10, "trg_kps": [[50.0, 50.0]] * 10,
            "pred_kps": [[50.0, 50.0] if good else [90.0, 90.0] for good in right], "peak": peak.tolist(),
            "trg_bbox": None, "difficulty": {}, "cycle_error": [0.1] * 10,
        })  # fmt: skip
    lines[0] |= {"absent_kps": [[1.0, 1.0]] * 4, "absent_peak": [0.01] * 4, "absent_cycle_error": [2.0] * 4}
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_folders_of_the_same_name(predicted: Path, tmp_path: Path, capsys):
    other = tmp_path / "elsewhere" / predicted.name
    shutil.copytree(predicted, other)
    lines = [json.loads(line) for line in (other / "predictions.jsonl").read_text().splitlines()]
    for line in lines:
        line["peak"] = [1 - peak for peak in line["peak"]]  # where the sharp ones are wrong
    (other / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("calibrate", predicted, "--json") == 0
    alone = json.loads(capsys.readouterr().out)
    assert run("calibrate", predicted, "--check", other, "--json") == 0
    both = json.loads(capsys.readouterr().out)
    assert both["calibration"] == alone["calibration"]
    assert list(both["sets"]) == [str(predicted), str(other)]
    assert run("calibrate", predicted, "--weights", tmp_path / "typo") == 2
    assert "typo: no checkpoint folder, it has no config.json" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


def test_points_that_are_absent(predicted: Path, tmp_path: Path, capsys):
    other = tmp_path / "older"
    shutil.copytree(predicted, other)
    lines = [json.loads(line) for line in (other / "predictions.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if not key.startswith("absent")} for line in lines]
    (other / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    plot = tmp_path / "confidence.png"
    assert run("calibrate", predicted, "--check", other, "--json", "--plot", plot) == 0
    sets = json.loads(capsys.readouterr().out)["sets"]
    assert (sets["val"]["absent"], sets["val"]["absent_found"]) == (4, 0)
    assert sets["val"]["auc_with_absent"] > sets["val"]["auc"] > 0.7  # all dull ones are wrong
    assert (sets["older"]["absent"], sets["older"]["auc_with_absent"]) == (0, None)
    assert sets["older"]["auc"] == sets["val"]["auc"]
    assert plot.stat().st_size > 10_000
    assert run("calibrate", predicted, "--check", other) == 0
    assert "auc with absent" in capsys.readouterr().out


def write_passes(folder: Path, *, unrelated: bool = False, cues: int = len(POINT_CUES)) -> Path:
    """Predictions of several passes: points are right where the first cue is positive."""
    rng = np.random.default_rng(int(unrelated))
    folder.mkdir()
    write_run(folder, Run("eval", {"benchmark": "spair"} | ({"unrelated": True} if unrelated else {})))
    lines = []
    for pair in range(60):
        values = rng.normal(size=(8, cues))
        right = values[:, 0] + rng.normal(size=8) > 0
        lines.append({
            "name": str(pair), "category": f"kind {pair % 6}", "src_size": [100, 100], "trg_size": [100, 100],
            "kp_index": list(range(8)), "src_kps": [[1.0, 1.0]] * 8, "trg_kps": [[50.0, 50.0]] * 8,
            "pred_kps": [[50.0, 50.0] if good else [90.0, 90.0] for good in right], "peak": [0.5] * 8,
            "trg_bbox": [0.0, 0.0, 100.0, 100.0], "difficulty": {}, "cycle_error": [0.1] * 8, "cues": values.tolist(),
            "absent_kps": [[1.0, 1.0]], "absent_peak": [0.5], "absent_cycle_error": [0.1],
            "absent_cues": rng.normal(-1, 1, size=(1, cues)).tolist(),
            "pair_cues": (rng.normal(size=8) + (-2 if unrelated else 0)).tolist(),
        })  # fmt: skip
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_several_passes(tmp_path: Path, capsys):
    val, others = write_passes(tmp_path / "val"), write_passes(tmp_path / "others", unrelated=True)
    weights = tmp_path / "weights"
    shutil.copytree(SHIPPED, weights)
    before = load_calibration(weights)
    plot = tmp_path / "confidence.png"
    assert run("calibrate", val, others, "--weights", weights, "--plot", plot, "--pck-threshold", "img") == 0
    printed = capsys.readouterr().out
    for words in ("fitted on val + others", "absent found at 85", "same kind of thing", "unrelated taken for pairs"):
        assert words in printed
    assert plot.stat().st_size > 10_000
    after = load_calibration(weights)
    assert after.one_pass == before.one_pass
    assert after.coarse_to_fine.pck_threshold == "img"
    assert after.coarse_to_fine.right_weights["log_peak"] > 0.5
    assert run("calibrate", val, others, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["calibration"]["pck_threshold"] == "bbox"
    assert report["sets"]["val"]["auc_with_absent"] > 0.7
    assert report["sets"]["others"]["auc"] is None
    assert report["same_kind"]["auc"] > 0.9


def test_tolerance_of_the_object(tmp_path: Path, predicted: Path, capsys):
    """The object's box; or that of its keypoints in sets without boxes, here a single point that no other is near."""
    assert run("calibrate", write_passes(tmp_path / "boxes"), "--pck-threshold", "object", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["calibration"]["pck_threshold"] == report["sets"]["boxes"]["threshold"] == "bbox"
    assert run("calibrate", predicted, "--pck-threshold", "object", "--json") == 0
    assert json.loads(capsys.readouterr().out)["sets"]["val"]["threshold"] == "bbox-kp"


def test_cues_of_another_version(tmp_path: Path, capsys):
    assert run("calibrate", write_passes(tmp_path / "val", cues=5)) == 2
    assert "cues of another version" in capsys.readouterr().err
