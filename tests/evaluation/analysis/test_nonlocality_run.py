"""Nonlocality on disk, resuming after an interruption, the summary."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.analysis import measured, write_checkpoint

from transformatcher.data.pairs import collate, load_pair
from transformatcher.data.spair import load_spair
from transformatcher.errors import InputError
from transformatcher.evaluation.analysis import nonlocality_run
from transformatcher.evaluation.analysis.attention_hooks import record_attention
from transformatcher.evaluation.analysis.nonlocality import uniform_nonlocality
from transformatcher.evaluation.analysis.nonlocality_figures import departure
from transformatcher.evaluation.analysis.nonlocality_run import LINES, PairNonlocality, compute_nonlocality, summarise
from transformatcher.inference.checkpoint import SHIPPED, load_checkpoint
from transformatcher.run_folder import Run, write_run

CPU = torch.device("cpu")
RUN = Run("analyse nonlocality", {"a": 1})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_checkpoint(write_checkpoint(tmp_path_factory.mktemp("weights")))[0]


def test_pairs_go_to_disk_once(model, spair_root: Path, tmp_path: Path, monkeypatch):
    pairs = load_spair(spair_root, "val")
    out = tmp_path / "out"
    first = compute_nonlocality(model, pairs[:1], out, RUN, image_size=(64, 64), device=CPU)
    assert np.array(first[0].pairwise).shape == np.array(first[0].query).shape == (2, 8)
    with (out / LINES).open("a") as file:
        file.write('{"name": "cut off')
    calls = []
    real = nonlocality_run.pair_nonlocality
    monkeypatch.setattr(nonlocality_run, "pair_nonlocality", lambda *args: calls.append(args) or real(*args))
    both = compute_nonlocality(model, pairs, out, RUN, image_size=(64, 64), device=CPU)
    assert len(calls) == 1
    assert both[0] == first[0]
    assert [json.loads(line)["name"] for line in (out / LINES).read_text().splitlines()] == [p.name for p in pairs]
    other = replace(pairs[0], visible=~pairs[0].visible)
    with pytest.raises(InputError, match=f"holds nonlocality of another pair {other.name}"):
        compute_nonlocality(model, [other], out, RUN, image_size=(64, 64), device=CPU)
    with pytest.raises(InputError, match=r"holds another run, which differs in a \(1 there, 2 here\)"):
        compute_nonlocality(model, pairs, out, Run("analyse nonlocality", {"a": 2}), image_size=(64, 64), device=CPU)


def test_a_pair_against_all_matches_with_all(model, spair_root: Path):
    """256 matches: the supplement's T × T attention of every layer and head, at once."""
    pair = load_spair(spair_root, "val")[0]
    found = nonlocality_run.pair_nonlocality(model, pair, (64, 64), CPU)
    tensors = collate([load_pair(pair, (64, 64))])
    with torch.inference_mode():
        corr = model.correlation(*model.encode_pair(tensors.src, tensors.trg))
        _, layers = record_attention(model.refiner, corr, lambda layer: layer)
    cells = torch.cartesian_prod(*[torch.arange(4.0).double()] * 4)
    squares = torch.cdist(cells, cells).square()
    for row, layer in zip(found.pairwise, layers, strict=True):
        scaled = layer.alpha[0, ..., None].double() * layer.queries[0].double()
        attention = (scaled @ layer.keys[0].double().transpose(1, 2)).softmax(dim=2)  # (heads, t, t)
        expected = (attention * squares).sum(dim=2).mean(dim=1)
        np.testing.assert_allclose(row, expected.numpy(), rtol=1e-9)
        assert max(abs(phi - uniform_nonlocality(layer.grid)) for phi in row) > 1e-3  # not uniform


@pytest.mark.data
def test_attention_of_the_shipped_model_is_nearly_uniform(data_root: Path):
    model, config = load_checkpoint(SHIPPED)
    found = nonlocality_run.pair_nonlocality(
        model, load_spair(data_root / "SPair-71k", "val")[0], config.image_size, CPU
    )
    uniform = uniform_nonlocality(tuple(found.grid))
    np.testing.assert_allclose(found.pairwise, uniform, rtol=1e-5)
    np.testing.assert_allclose(found.query, uniform, rtol=0.05)
    assert np.ptp(found.query) > 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"name": "a"}\n', "line 1: not the nonlocality of a pair"),
        (b"[" * 100_000 + b"\n", "line 1: not the nonlocality of a pair"),
        (b"\xff\xfe\n", "not text in UTF-8"),
    ],
)
def test_invalid_lines_are_named(model, tmp_path: Path, data: bytes, message: str):
    (tmp_path / LINES).write_bytes(data)
    write_run(tmp_path, RUN)
    with pytest.raises(InputError, match=rf"nonlocality\.jsonl.*{message}"):
        compute_nonlocality(model, [], tmp_path, RUN, image_size=(64, 64), device=CPU)


def test_summary_by_hand():
    summary = summarise([measured(str(i), phi=float(i), level=i // 14) for i in range(40)])
    assert summary["uniform"] == uniform_nonlocality((4, 4, 4, 4)) == 10
    layer = summary["layers"]["query"][2]
    assert layer["mean"] == pytest.approx(20)
    assert layer["heads"] == pytest.approx([19.5, 20.5])
    viewpoint = summary["difficulty"]["pairwise"]["viewpoint"]
    assert len(viewpoint["shares"]) == 20  # of two pairs each
    assert viewpoint["shares"][0] == [1, 0, 0]
    assert viewpoint["shares"][-1] == [0, 0, 1]
    assert viewpoint["phi"][0] == pytest.approx(3 * 1.0)  # pairs 0 and 1, heads' mean φ + ½, over 3 layers
    assert viewpoint["rank_correlation"] > 0.9
    assert summary["difficulty"]["pairwise"]["truncation"]["rank_correlation"] < -0.9
    assert summary["difficulty"]["pairwise"]["scale"]["rank_correlation"] is None  # all alike
    assert departure(summary, "query") == pytest.approx(205 - 100, abs=1)
    assert [row["phi"] for row in summary["convolutions"][:2]] == pytest.approx([8 / 3, 8])


def test_quantiles_of_a_small_kernel():
    """3⁴ offsets: their squared lengths are 0 to 4, in shares of 1, 8, 24, 32 and 16 in 81."""
    summary = summarise([measured("a", 1.0, 0)])
    assert summary["convolutions"][0]["quantiles"] == [1, 2, 3, 3, 4]


def test_grids_must_agree():
    other = PairNonlocality(**{**vars(measured("b", 1.0, 0)), "grid": [5, 4, 4, 4]})
    with pytest.raises(InputError, match="2 different grids"):
        summarise([measured("a", 1.0, 0), other])
