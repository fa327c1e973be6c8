"""The ``released`` variant against numbers computed by the authors' own matcher in float64."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from transformatcher.config import model_config
from transformatcher.coords import norm_to_px, px_to_norm
from transformatcher.models.backend import Backend
from transformatcher.models.build import build_matcher, build_refiner
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.match2match import MatchToMatch
from transformatcher.models.resize4d import resize4d
from transformatcher.models.sampler import soft_sample

GOLDEN = Path(__file__).parents[1] / "golden" / "released_matcher.safetensors"
OUR_NAMES = [
    (r"to_embedding\.1", "embed"),
    (r"to_original\.0", "score"),
    (r"trans_nc\.(\d+)\.0\.norm", r"blocks.\1.norm_attention"),
    (r"trans_nc\.(\d+)\.1\.norm", r"blocks.\1.norm_ffn"),
    (r"trans_nc\.(\d+)\.1\.fn", r"blocks.\1.ffn"),
    (r"trans_nc\.(\d+)\.0\.fn\.to_q_attn_logits", r"blocks.\1.attention.to_q_score"),
    (r"trans_nc\.(\d+)\.0\.fn\.to_k_attn_logits", r"blocks.\1.attention.to_k_score"),
    (r"trans_nc\.(\d+)\.0\.fn\.to_r", r"blocks.\1.attention.to_update"),
    (r"trans_nc\.(\d+)\.0\.fn", r"blocks.\1.attention"),
]


def our_name(key: str) -> str:
    for pattern, ours in OUR_NAMES:
        key = re.sub(f"^{pattern}", ours, key)
    return key


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return {key: value.double() for key, value in load_file(GOLDEN).items()}


@pytest.fixture(scope="module")
def refiner(golden: dict[str, Tensor]) -> MatchToMatch:
    prefix = "weights."
    weights = {our_name(key.removeprefix(prefix)): v for key, v in golden.items() if key.startswith(prefix)}
    weights = {key: v for key, v in weights.items() if "pos_emb" not in key}
    refiner = build_refiner(model_config({"variant": "released"}), layers=26).double()
    assert isinstance(refiner, MatchToMatch)
    refiner.load_state_dict(weights, strict=True)
    return refiner


@pytest.fixture(scope="module")
def correlation(golden: dict[str, Tensor]) -> Tensor:
    src, trg = ([golden[f"features.{side}.{layer}"] for layer in range(26)] for side in ("src", "trg"))
    correlate = build_matcher(model_config({"variant": "released"})).correlation
    return correlate(src, trg)


def worst(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    assert ours.dtype == torch.float64
    return float((ours - theirs).abs().max())


@pytest.mark.parametrize("layer", [0, 25])
def test_correlation(golden: dict[str, Tensor], correlation: Tensor, layer: int) -> None:
    assert worst(correlation[0, layer], golden[f"correlation_layer{layer}"]) < 1e-6


@torch.no_grad()
def test_first_attention(golden: dict[str, Tensor], correlation: Tensor, refiner: MatchToMatch) -> None:
    tokens = refiner.embed(correlation.flatten(2).transpose(1, 2))
    block = refiner.blocks[0]
    out = block.attention(block.norm_attention(tokens), (15, 15, 15, 15))
    assert worst(out[0, :1000], golden["attention0_out_first1000"]) < 1e-6


@pytest.mark.parametrize("backend", ["eager", "fused"])
@torch.no_grad()
def test_refined_map(golden: dict[str, Tensor], correlation: Tensor, refiner: MatchToMatch, backend: Backend) -> None:
    refiner.set_backend(backend)
    assert worst(refiner(correlation)[0], golden["refined"]) < 1e-6


def test_upsampled_row(golden: dict[str, Tensor]) -> None:
    upsampled = resize4d(golden["refined"][None], (30, 30), (30, 30))
    assert worst(upsampled.reshape(900, 900)[450], golden["upsampled_row_450"]) < 1e-6


@pytest.mark.parametrize(("mode", "threshold"), [("train", 0.1), ("test", 0.05)])
def test_transferred_keypoints(golden: dict[str, Tensor], mode: str, threshold: float) -> None:
    # The file's keypoints come from 40 × the upsampled map, so that its soft-argmax has something to say.
    flow = KernelSoftArgmax()(40 * golden["refined"][None])
    src = px_to_norm(golden["kps_src_px"][None], (240, 240))
    trg = norm_to_px(soft_sample(flow.trg_norm, src, threshold=threshold), (240, 240))
    assert worst(trg[0], golden[f"kps_trg_px_{mode}"]) < 1e-6
