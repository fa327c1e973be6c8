"""Config → matcher: the one place where names become modules."""

from functools import partial

from torch import nn

from transformatcher.config import ModelConfig
from transformatcher.keypoints import Sampler, bilinear_sample, soft_sampler
from transformatcher.models.attention import AdditiveAttention, PaperAttention, ReleasedAttention
from transformatcher.models.backbone import ResNetFeatures
from transformatcher.models.correlation import MultiLevelCorrelation
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.match2match import MatchToMatch, MeanCorrelation
from transformatcher.models.matcher import TransforMatcher
from transformatcher.models.rotary import AxialRotary, Checkerboard, NoPosition, Position


def build_matcher(config: ModelConfig) -> TransforMatcher:
    """A matcher with random weights, in evaluation mode."""
    backbone = ResNetFeatures(config.backbone, config.stages)
    return TransforMatcher(
        backbone=backbone,
        correlation=MultiLevelCorrelation(config.correlation, config.grid),
        refiner=build_refiner(config, backbone.n_layers),
        readout=KernelSoftArgmax(config.upsample, config.sigma, config.temperature, config.gaussian),
        sampler=_sampler(config, config.sampler_threshold),
        train_sampler=_sampler(config, config.sampler_threshold_train),
    ).eval()


def build_refiner(config: ModelConfig, layers: int) -> nn.Module:
    """The part between correlation and flow, for a correlation of ``layers`` channels."""
    if config.matcher == "none":
        return MeanCorrelation()
    return MatchToMatch(
        layers,
        config.dim,
        config.depth,
        config.ffn_ratio,
        make_attention=partial(_attention, config),
        raw_gain=config.raw_gain,
        block_gain=config.block_gain,
    )


def _attention(config: ModelConfig, dim: int) -> AdditiveAttention:
    kind = {"paper": PaperAttention, "released": ReleasedAttention}[config.attention]
    return kind(dim, config.heads, config.head_dim, _position(config))


def _position(config: ModelConfig) -> Position:
    if config.position == "axial":
        return AxialRotary(config.heads, config.head_dim, config.rotary_base, config.rotary_frequencies)
    return Checkerboard() if config.position == "checkerboard" else NoPosition()


def _sampler(config: ModelConfig, threshold: float) -> Sampler:
    return bilinear_sample if config.sampler == "bilinear" else soft_sampler(threshold)
