"""Predictions to disk, interruption, scores by hand."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from transformatcher.coords import grid_norm
from transformatcher.data.spair import load_spair
from transformatcher.errors import InputError
from transformatcher.evaluation.metrics import PCK_THRESHOLDS
from transformatcher.evaluation.predict import Prediction, fingerprint, predict_to_disk, read_predictions
from transformatcher.evaluation.scores import (
    PUBLISHED_FRAME,
    absent_points,
    pair_scores,
    parse_alphas,
    parse_frame,
    primary_metric,
    score,
    score_warnings,
    scores_name,
    tolerance_px,
)
from transformatcher.files import exclusive_lock
from transformatcher.models.sampler import bilinear_sample
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.run_folder import Run, write_run
from transformatcher.schema import Flow


class Identity(TransforMatcher):
    """A matcher that finds every point where it was, in normalised coordinates; counts the pairs it saw."""

    def __init__(self):
        nn.Module.__init__(self)
        self.seen = 0

    def encode_pair(self, src, trg):
        self.seen += len(src)
        return [src], [trg]

    def refine(self, src, _trg):
        return torch.zeros(len(src[0]), 4, 4, 4, 4)

    def readout(self, refined):
        flow = grid_norm((4, 4), like=refined).expand(len(refined), 4, 4, 2)
        return Flow(trg_norm=flow, peak=torch.ones(len(refined), 4, 4))

    def transfer(self, flow, points):
        return bilinear_sample(flow.trg_norm, points)


def predict(model, pairs, out, run=None, **options):
    options = {"image_size": (32, 32), "device": torch.device("cpu"), "batch": 1} | options
    return predict_to_disk(model, pairs, out, Run("eval", run or {"a": 1}), **options)


def prediction(name="p", category="cat", error=0.0, **changes) -> Prediction:
    fields = {
        "name": name, "category": category, "src_size": [100, 200], "trg_size": [100, 200], "kp_index": [0, 1],
        "src_kps": [[1.0, 1.0], [2.0, 2.0]], "trg_kps": [[20.0, 20.0], [120.0, 60.0]],
        "pred_kps": [[20.0, 20.0], [120.0 + error, 60.0]], "peak": [1.0, 1.0],
        "trg_bbox": [10.0, 10.0, 130.0, 70.0], "difficulty": {},
    }  # fmt: skip
    return Prediction(**(fields | changes))


class TestPredictions:
    def test_written_in_original_pixels(self, spair_root: Path, tmp_path: Path):
        model = Identity()
        seen = []
        pairs = load_spair(spair_root, "val")
        predict(model, pairs, tmp_path / "out", track=lambda done, total: seen.append((done, total)))
        first = read_predictions(tmp_path / "out")[0]
        for predicted, source in zip(first.pred_kps, first.src_kps, strict=True):
            assert predicted == pytest.approx(source, abs=1e-3)
        assert first.trg_size == [60, 80]
        assert seen == [(0, 2), (1, 2), (2, 2)]

    def test_absent_points_are_predicted_too(self, spair_root: Path, tmp_path: Path):
        pairs = load_spair(spair_root, "val")
        hidden = [replace(pairs[0], absent_px=np.array([[8.0, 6.0], [40.0, 30.0], [70.0, 5.0]])), pairs[1]]
        for batch in (1, 2):
            predict(Identity(), pairs, tmp_path / f"without-{batch}", batch=batch)
            predict(Identity(), hidden, tmp_path / f"with-{batch}", batch=batch)
            without, with_absent = (read_predictions(tmp_path / f"{name}-{batch}") for name in ("without", "with"))
            assert [len(one.absent_kps) for one in with_absent] == [3, 0]
            assert with_absent[0].absent_peak == [1, 1, 1]
            assert with_absent[0].absent_cycle_error == pytest.approx([0, 0, 0], abs=1e-5)
            for old, new in zip(without, with_absent, strict=True):  # PCK knows nothing of them
                assert replace(new, absent_kps=[], absent_peak=[], absent_cycle_error=[]) == old
            assert score(without) == score(with_absent)
            peak, cycle_error = absent_points(with_absent)
            assert (len(peak), len(cycle_error)) == (3, 3)
        assert fingerprint(pairs) != fingerprint(hidden)

    def test_files_of_an_older_version(self, tmp_path: Path):
        old = {key: value for key, value in asdict(prediction()).items() if not key.startswith("absent")}
        (tmp_path / "predictions.jsonl").write_text(json.dumps(old) + "\n")
        assert [len(values) for values in absent_points(read_predictions(tmp_path))] == [0, 0]

    def test_goes_on_where_it_was_cut_off(self, spair_root: Path, tmp_path: Path):
        pairs = load_spair(spair_root, "val")
        whole = predict(Identity(), pairs, tmp_path / "whole").read_text()
        path = predict(Identity(), pairs, tmp_path / "cut")
        path.write_text(whole[: len(whole) - 40])  # the second line was being written
        model = Identity()
        predict(model, pairs, tmp_path / "cut")
        assert model.seen == 1
        assert path.read_text() == whole

    def test_two_processes_in_one_folder(self, spair_root: Path, tmp_path: Path):
        pairs = load_spair(spair_root, "val")
        with exclusive_lock(tmp_path), pytest.raises(InputError, match="another process is writing there"):
            predict(Identity(), pairs, tmp_path)
        path = predict(Identity(), pairs, tmp_path)
        path.write_text(2 * path.read_text())  # what two of them left before they knew of each other
        with pytest.raises(InputError, match=r"line 3: a second line for .*; .*--overwrite"):
            read_predictions(tmp_path)

    def test_reading_leaves_what_is_being_written(self, spair_root: Path, tmp_path: Path):
        path = predict(Identity(), load_spair(spair_root, "val"), tmp_path)
        text = path.read_text()[:-40]
        path.write_text(text)
        assert len(read_predictions(tmp_path)) == 1
        assert path.read_text() == text

    def test_another_run_is_refused(self, spair_root: Path, tmp_path: Path):
        pairs = load_spair(spair_root, "val")
        predict(Identity(), pairs, tmp_path, {"weights": "a"})
        with pytest.raises(InputError, match=r"another run, which differs in weights \(.*--overwrite"):
            predict(Identity(), pairs, tmp_path, {"weights": "b"})
        model = Identity()
        predict(model, pairs, tmp_path, {"weights": "b"}, overwrite=True)
        assert model.seen == 2

    def test_bad_folders(self, tmp_path: Path):
        with pytest.raises(InputError, match="no predictions there"):
            read_predictions(tmp_path)
        (tmp_path / "predictions.jsonl").write_text("")
        with pytest.raises(InputError, match="holds no predictions"):
            read_predictions(tmp_path)
        (tmp_path / "predictions.jsonl").write_text('{"name": 1}\n')
        with pytest.raises(InputError, match="line 1: not a prediction"):
            read_predictions(tmp_path)


class TestScores:
    def test_by_hand_in_both_frames(self):
        # The target is 200 × 100; one of two points is 11 pixels off along x.
        pairs = [prediction("a", error=11.0), prediction("b")]
        original = score(pairs, frame=None, alphas=[0.05, 0.1, 0.15])
        # img: 200 · 0.05 = 10 < 11 < 200 · 0.1; bbox: 120 · 0.1 = 12; bbox-kp: 100 · 0.1 = 10
        assert original["pck"]["img"]["0.05"]["per_pair"] == 75
        assert original["pck"]["img"]["0.1"]["per_pair"] == 100
        assert original["pck"]["bbox"]["0.1"]["per_pair"] == 100
        assert original["pck"]["bbox-kp"]["0.1"]["per_pair"] == 75
        assert original["pck"]["bbox-kp"]["0.15"]["per_pair"] == 100
        # bbox-padded: (120 + 2) · 0.1 = 12.2
        assert original["pck"]["bbox-padded"]["0.1"]["per_pair"] == 100
        resized = score(pairs, alphas=[0.05, 0.1])
        # x · 1.2, y · 2.4: the error becomes 13.2; img 240 · 0.05 = 12; boxes: 144 wide, 144 high; keypoints 120 wide
        assert resized["frame"] == "240x240"
        assert resized["pck"]["img"]["0.05"]["per_pair"] == 75
        assert resized["pck"]["bbox"]["0.1"]["per_pair"] == 100
        assert resized["pck"]["bbox-kp"]["0.1"]["per_pair"] == 75

    @pytest.mark.parametrize("pck_threshold", PCK_THRESHOLDS)
    def test_pairs_alone_have_the_mean_of_all(self, pck_threshold):
        pairs = [prediction(str(error), error=error) for error in (0.0, 9.0, 11.0, 11.0, 30.0)]
        for frame in (None, PUBLISHED_FRAME):
            for alpha in (0.05, 0.1):
                alone = pair_scores(pairs, pck_threshold, alpha, frame)
                assert set(alone.tolist()) <= {50.0, 100.0}
                table = score(pairs, frame=frame, alphas=[alpha])["pck"][pck_threshold][f"{alpha:g}"]
                assert alone.mean() == pytest.approx(table["per_pair"], abs=1e-3)
        # 200 · 0.05 = 10
        assert pair_scores(pairs, "img", 0.05, None).tolist() == [100, 100, 50, 50, 50]

    @pytest.mark.parametrize("pck_threshold", PCK_THRESHOLDS)
    @pytest.mark.parametrize("frame", [None, PUBLISHED_FRAME])
    def test_tolerance_is_where_right_ends(self, pck_threshold, frame):
        x, y = tolerance_px(prediction(), pck_threshold, 0.1, frame)
        for shift in ([x, 0.0], [0.0, y], [0.6 * x, 0.8 * y]):
            for share, right in ((0.999, 100), (1.001, 50)):
                moved = prediction(pred_kps=[[20.0, 20.0], [120.0 + share * shift[0], 60.0 + share * shift[1]]])
                assert pair_scores([moved], pck_threshold, 0.1, frame) == [right]

    def test_a_pair_without_a_box_is_named(self):
        with pytest.raises(InputError, match="pair b has no object box, which the threshold 'bbox' needs"):
            pair_scores([prediction("a"), prediction("b", trg_bbox=None)], "bbox", 0.1)

    def test_shape_of_the_result(self):
        pairs = [
            prediction("a", error=50.0, difficulty={"scale": 0}),
            prediction("b", category="dog", difficulty={"scale": 2}, kp_index=[0], src_kps=[[1.0, 1.0]],
                       trg_kps=[[20.0, 20.0]], pred_kps=[[20.0, 20.0]], peak=[1.0]),
        ]  # fmt: skip
        scores = score(pairs)
        assert (scores["n_pairs"], scores["n_points"]) == (2, 3)
        cell = scores["pck"]["img"]["0.1"]
        assert cell["per_pair"] == 75
        assert cell["per_point"] == pytest.approx(66.667)
        assert 50 <= cell["ci95"][0] <= cell["ci95"][1] <= 100
        assert set(scores["pck"]["bbox"]) == {"0.01", "0.05", "0.1", "0.15"}
        assert scores["per_category"]["cat"]["img"]["0.1"]["per_pair"] == 50
        assert scores["difficulty"]["scale"]["hard"]["bbox"]["0.1"]["per_pair"] == 100
        assert "medium" not in scores["difficulty"]["scale"]

    def test_kind_without_boxes_is_left_out_and_said(self):
        pairs = [prediction("a"), prediction("b", trg_bbox=None)]
        assert list(score(pairs)["pck"]) == ["img", "bbox-kp", "bbox-padded"]
        assert score_warnings(pairs, Path("nowhere")) == ["no bbox threshold: 1 of 2 pairs have no object box"]
        assert score_warnings(pairs[:1], Path("nowhere")) == []

    def test_unfinished_runs_and_points_outside_are_said(self, tmp_path: Path):
        write_run(tmp_path, Run("eval", {"n_pairs": 9}))
        outside = prediction("a", trg_kps=[[20.0, 20.0], [120.0, 260.0]])
        unfinished, stray = score_warnings([outside], tmp_path)
        assert unfinished == "unfinished: 1 of 9 pairs are predicted so far"
        assert stray.startswith("1 true keypoints lie outside")

    def test_another_protocol_has_another_file(self):
        assert scores_name((240, 240), [0.01, 0.05, 0.1, 0.15]) == "scores.json"
        assert scores_name(None, [0.2]) == "scores-original-alpha-0.2.json"

    @pytest.mark.parametrize(
        "change",
        [
            {"trg_bbox_px": np.array([0.0, 0.0, 5.0, 5.0])},
            {"src_flip": True},
            {"difficulty": {"scale": 2}},
            {"category": "x"},
            {"src_kps_px": np.ones((2, 2))},
            {"trg_kps_px": np.ones((2, 2))},
            {"visible": np.zeros(2, dtype=bool)},
        ],
    )
    def test_every_part_of_the_annotation_counts(self, spair_root: Path, change):
        pair = load_spair(spair_root, "val")[0]
        assert fingerprint([pair]) == fingerprint([replace(pair)])
        assert fingerprint([pair]) != fingerprint([replace(pair, **change)])

    def test_headline(self, tmp_path: Path):
        scores = score([prediction("a", trg_bbox=None)])
        write_run(tmp_path, Run("eval", {"benchmark": "pfwillow"}))
        assert primary_metric(scores, tmp_path) == ("bbox-kp", "0.1")
        assert primary_metric(scores, tmp_path / "nowhere") == ("img", "0.1")
        (tmp_path / "run.json").write_text("{")  # damaged
        assert primary_metric(scores, tmp_path) == ("img", "0.1")
        with pytest.raises(InputError, match="choose one of img, bbox-kp, bbox-padded"):
            primary_metric(scores, tmp_path, "bbox")

    def test_options(self):
        assert parse_frame("original") is None
        assert parse_frame("240") == (240, 240)
        assert parse_frame("240x320") == (240, 320)
        assert parse_alphas([0.1, 0.05, 0.1]) == [0.05, 0.1]
        with pytest.raises(InputError, match="frame '24o'"):
            parse_frame("24o")
        for bad in (0.0, 1.5, float("nan"), float("inf")):
            with pytest.raises(InputError, match="between 0 and 1"):
                parse_alphas([bad])
