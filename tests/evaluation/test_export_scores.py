"""A model and its exported file on the same pairs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.analysis import write_checkpoint

from transformatcher.data.pairs import collate, load_pair
from transformatcher.data.spair import load_spair
from transformatcher.evaluation import export_scores
from transformatcher.evaluation.export_scores import compare_export
from transformatcher.evaluation.predict import predict_batch
from transformatcher.evaluation.scores import pair_scores
from transformatcher.inference.matcher import Matcher


def test_each_is_scored_by_its_own_points(spair_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file that always finds the true points scores 100, whatever its model finds."""
    matcher = Matcher.from_pretrained(write_checkpoint(tmp_path / "weights"), device="cpu")
    pairs = load_spair(spair_root, "val")
    loaded = [load_pair(pair, matcher.config.image_size) for pair in pairs]
    answers = iter([collate([item]).trg_kps_norm.numpy() for item in loaded])

    def load_file(*_: object) -> object:
        def run(src: np.ndarray, trg: np.ndarray, src_kps_norm: np.ndarray) -> list[np.ndarray]:
            assert src.shape == trg.shape == (1, *matcher.config.image_size, 3)
            assert src_kps_norm.shape == (1, 2, 2)
            return [next(answers)]

        return run

    monkeypatch.setattr(export_scores, "load_file", load_file)
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(2_000_000))
    model, file = compare_export(matcher, path, pairs, "spair", [0.05, 0.1])
    assert (model.name, model.megabytes, file.name, file.megabytes) == ("model", None, "model.onnx", 2)
    assert file.pck == {"0.05": 100, "0.1": 100}
    own = [next(iter(predict_batch(matcher.model, [item], torch.device("cpu")))) for item in loaded]
    assert model.pck["0.1"] == pytest.approx(pair_scores(own, "bbox", 0.1).mean())
    assert min(model.ms_per_pair, file.ms_per_pair) > 0
