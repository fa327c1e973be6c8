"""Predictions to disk, interruption, damaged files."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.predictions import prediction
from torch import nn

from transformatcher.coords import grid_norm
from transformatcher.data.spair import load_spair
from transformatcher.errors import InputError
from transformatcher.evaluation.predict import PairPredictor, fingerprint, predict_to_disk, read_predictions
from transformatcher.evaluation.scores import absent_points, score
from transformatcher.files import exclusive_lock
from transformatcher.models.sampler import bilinear_sample
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.run_folder import Run
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


def predict(model, pairs, out, run=None, *, batch=1, **options):
    predictor = PairPredictor(model, (32, 32), torch.device("cpu"), batch=batch)
    return predict_to_disk(lambda _track: predictor, pairs, out, Run("eval", run or {"a": 1}), **options)


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
def test_every_part_of_the_annotation_counts(spair_root: Path, change):
    pair = load_spair(spair_root, "val")[0]
    assert fingerprint([pair]) == fingerprint([replace(pair)])
    assert fingerprint([pair]) != fingerprint([replace(pair, **change)])
