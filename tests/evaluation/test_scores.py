"""Predictions → scores, checked by hand."""

from pathlib import Path

import pytest
from helpers.predictions import prediction

from transformatcher.errors import InputError
from transformatcher.evaluation.metrics import PCK_THRESHOLDS
from transformatcher.evaluation.scores import (
    PUBLISHED_FRAME,
    pair_scores,
    parse_alphas,
    parse_frame,
    primary_metric,
    rank_by_error,
    score,
    score_warnings,
    scores_name,
    tolerance_px,
)
from transformatcher.run_folder import Run, read_arguments, write_run


def test_by_hand_in_both_frames():
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
def test_pairs_alone_have_the_mean_of_all(pck_threshold):
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
def test_tolerance_is_where_right_ends(pck_threshold, frame):
    x, y = tolerance_px(prediction(), pck_threshold, 0.1, frame)
    for shift in ([x, 0.0], [0.0, y], [0.6 * x, 0.8 * y]):
        for share, right in ((0.999, 100), (1.001, 50)):
            moved = prediction(pred_kps=[[20.0, 20.0], [120.0 + share * shift[0], 60.0 + share * shift[1]]])
            assert pair_scores([moved], pck_threshold, 0.1, frame) == [right]


def test_a_pair_without_a_box_is_named():
    with pytest.raises(InputError, match="pair b has no object box, which the threshold 'bbox' needs"):
        pair_scores([prediction("a"), prediction("b", trg_bbox=None)], "bbox", 0.1)


def test_shape_of_the_result():
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


def test_a_threshold_without_boxes_is_left_out_with_a_warning():
    pairs = [prediction("a"), prediction("b", trg_bbox=None)]
    assert list(score(pairs)["pck"]) == ["img", "bbox-kp", "bbox-padded"]
    assert score_warnings(pairs, {}) == ["no bbox threshold: 1 of 2 pairs have no object box"]
    assert score_warnings(pairs[:1], {}) == []


def test_unfinished_runs_and_points_outside_are_mentioned(tmp_path: Path):
    write_run(tmp_path, Run("eval", {"n_pairs": 9}))
    outside = prediction("a", trg_kps=[[20.0, 20.0], [120.0, 260.0]])
    unfinished, stray = score_warnings([outside], read_arguments(tmp_path))
    assert unfinished == "unfinished: 1 of 9 pairs are predicted so far"
    assert stray.startswith("1 true keypoints lie outside")


def test_another_protocol_has_another_file():
    assert scores_name((240, 240), [0.01, 0.05, 0.1, 0.15]) == "scores.json"
    assert scores_name(None, [0.2]) == "scores-original-alpha-0.2.json"


def test_primary_metric(tmp_path: Path):
    scores = score([prediction("a", trg_bbox=None)])
    write_run(tmp_path, Run("eval", {"benchmark": "pfwillow"}))
    assert primary_metric(scores, read_arguments(tmp_path)) == ("bbox-kp", "0.1")
    assert primary_metric(scores, {}) == ("img", "0.1")
    (tmp_path / "run.json").write_text("{")  # damaged
    assert primary_metric(scores, read_arguments(tmp_path)) == ("img", "0.1")
    with pytest.raises(InputError, match="choose one of img, bbox-kp, bbox-padded"):
        primary_metric(scores, read_arguments(tmp_path), "bbox")


def test_options():
    assert parse_frame("original") is None
    assert parse_frame("240") == (240, 240)
    assert parse_frame("240x320") == (240, 320)
    assert parse_alphas([0.1, 0.05, 0.1]) == [0.05, 0.1]
    with pytest.raises(InputError, match="frame '24o'"):
        parse_frame("24o")
    for bad in (0.0, 1.5, float("nan"), float("inf")):
        with pytest.raises(InputError, match="between 0 and 1"):
            parse_alphas([bad])


def test_worst_pairs_come_first():
    """PCK decides; of equal PCK, the larger error."""
    pairs = [prediction("right"), prediction("bad", error=40.0), prediction("worse", error=50.0)]
    assert rank_by_error(pairs, "img", 0.1) == [2, 1, 0]


def test_how_pairs_were_matched_is_said(tmp_path: Path):
    model = {"coarse_to_fine": {"passes": 2, "region": "points"}}
    write_run(tmp_path, Run("eval", {"benchmark": "spair", "model": model, "try_mirrored": True, "n_pairs": 2}))
    crops, mirrored = score_warnings([prediction("a", mirrored=True), prediction("b")], read_arguments(tmp_path))
    assert "around the points that both photos show" in crops
    assert mirrored == "matched with the mirrored source: 1 of 2 pairs, 50.0 %"
    write_run(tmp_path, Run("eval", {"benchmark": "spair", "model": {"coarse_to_fine": {"region": "object"}}}))
    assert score_warnings([prediction("a")], read_arguments(tmp_path)) == []
