"""Config → model. Only this module reads a config; all others take plain arguments."""

from functools import partial

import torch
from torch import nn

from transformatcher.config import TIMM, Match2MatchConfig, ModelConfig
from transformatcher.models.attention import PaperAttention, ReleasedAttention
from transformatcher.models.backbones.backbone import Backbone
from transformatcher.models.backbones.resnet import ResNetFeatures, grid_of
from transformatcher.models.backbones.timm import TimmFeatures
from transformatcher.models.baselines.cats import CostAggregation
from transformatcher.models.baselines.learned_position import AxialPositionEmbedding, MatchPositionEmbedding
from transformatcher.models.baselines.softmax_attention import LinformerAttention, PerformerAttention, VanillaAttention
from transformatcher.models.correlation import MultiLevelCorrelation
from transformatcher.models.cost import check_cost, pair_bytes, weight_count
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.match2match import MatchToMatch, MeanCorrelation
from transformatcher.models.neighbourhood_consensus import NeighbourhoodConsensus
from transformatcher.models.rotary import AxialRotary, Checkerboard, Grid4, NoPosition, Position
from transformatcher.models.sampler import Sampler, bilinear_sample, soft_sampler
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import Size


def build_matcher(config: ModelConfig) -> TransforMatcher:
    """A model with random weights, in evaluation mode; InputError if it is larger than the machine's memory."""
    check_cost(0, pair_memory(config))  # before anything is built
    backbone = build_backbone(config)
    n_channels = backbone.n_layers if config.layer_fusion == "multi" else 1
    with torch.device("meta"):  # computes sizes alone
        refiner = build_refiner(config, n_channels, config.grid or backbone.grid)
    check_cost(weight_count(refiner) + weight_count(backbone), pair_memory(config, backbone.grid, n_channels))
    return TransforMatcher(
        backbone=backbone,
        correlation=MultiLevelCorrelation(config.correlation, config.grid, config.layer_fusion),
        refiner=build_refiner(config, n_channels, config.grid or backbone.grid),
        readout=KernelSoftArgmax(config.upsample, config.kernel_sigma, config.temperature, config.kernel_on),
        sampler=_sampler(config, config.sampler_threshold),
        train_sampler=_sampler(config, config.sampler_threshold_train),
    ).eval()


def pair_memory(config: ModelConfig, grid: Size | None = None, layers: int = 1) -> int:
    """About how many bytes matching one pair of images takes.

    Args:
        config: of the model.
        grid: (h, w) of the finest layer; None: that of the finest stage of a ResNet, which most networks of timm have,
            too.
        layers: channels of the correlation.
    """
    h, w = config.grid or grid or grid_of(config.image_size, min(config.stages))
    one_pass = config.coarse_to_fine.passes == 1  # several passes upsample the scores of the points alone
    return pair_bytes(config.image_size, (h, w), _match_channels(config, layers), config.upsample if one_pass else 1)


def _match_channels(config: ModelConfig, layers: int) -> int:
    """About how many numbers a refiner keeps for each candidate match at its peak."""
    match config.refiner:
        case "nc4d":
            return layers + 2 * config.nc4d.dim
        case "match2match":
            blocks = config.match2match
            fused = 0 if blocks.attention in ("paper", "released") else 3 * blocks.heads * blocks.head_dim
            return 2 * layers + 2 * blocks.dim + (2 * blocks.dim if blocks.conv_branch_depth else 0) + fused
        case _:
            return 2 * layers


def build_backbone(config: ModelConfig) -> Backbone:
    """The network that computes the features, with random weights."""
    if config.backbone.startswith(TIMM):
        return TimmFeatures(config.backbone.removeprefix(TIMM), config.layers, config.image_size)
    return ResNetFeatures(config.backbone, config.stages, config.layers, config.image_size)


def build_refiner(config: ModelConfig, layers: int, grid: Size | None = None) -> nn.Module:
    """The refiner, between correlation and read-out, for a correlation of ``layers`` channels.

    Some refiners have weights for each cell of the correlation's ``grid``; None: that of the finest ResNet stage.
    """
    h, w = grid or config.grid or grid_of(config.image_size, min(config.stages))
    gains = {"correlation_skip": config.correlation_skip, "refiner_scale": config.refiner_scale}
    match config.refiner:
        case "none":
            return MeanCorrelation()
        case "nc4d":
            nc4d = config.nc4d
            return NeighbourhoodConsensus(layers, nc4d.dim, nc4d.depth, nc4d.kernel, nc4d.mutual_filter, **gains)
        case "cats":
            cats = config.cats
            return CostAggregation(
                layers, (h, w), cats.dim, cats.depth, cats.heads, cats.head_dim, cats.ffn_ratio, **gains
            )
        case "match2match":
            blocks = config.match2match
            return MatchToMatch(
                layers,
                blocks.dim,
                blocks.depth,
                blocks.ffn_ratio,
                make_attention=partial(_attention, blocks, (h, w, h, w)),
                position_embedding=_position_embedding(blocks, (h, w, h, w)),
                consensus=_conv_branch(blocks, layers),
                **gains,
            )


def _attention(config: Match2MatchConfig, grid: Grid4, dim: int) -> nn.Module:
    heads, head_dim, position = config.heads, config.head_dim, _position(config)
    match config.attention:
        case "paper":
            return PaperAttention(dim, heads, head_dim, position)
        case "released":
            return ReleasedAttention(dim, heads, head_dim, position)
        case "vanilla":
            return VanillaAttention(dim, heads, head_dim, position, config.max_matches)
        case "linformer":
            return LinformerAttention(dim, grid, heads, head_dim, position, config.linformer_rank)
        case "performer":
            return PerformerAttention(dim, heads, head_dim, position, config.performer_features)


def _conv_branch(config: Match2MatchConfig, layers: int) -> NeighbourhoodConsensus | None:
    """The 4-D convolutions parallel to the blocks, if there are any."""
    if config.conv_branch_depth == 0:
        return None
    return NeighbourhoodConsensus(
        layers, config.dim, config.conv_branch_depth, config.conv_branch_kernel, config.conv_branch_mutual_filter
    )


def _position_embedding(config: Match2MatchConfig, grid: Grid4) -> nn.Module | None:
    kind = {"absolute": AxialPositionEmbedding, "absolute-table": MatchPositionEmbedding}.get(config.position)
    return kind(config.dim, grid) if kind else None


def _position(config: Match2MatchConfig) -> Position:
    if config.position == "axial":
        return AxialRotary(config.heads, config.head_dim, config.rotary_base, config.rotary_frequencies)
    return Checkerboard() if config.position == "checkerboard" else NoPosition()


def _sampler(config: ModelConfig, threshold: float) -> Sampler:
    return bilinear_sample if config.sampler == "bilinear" else soft_sampler(threshold)
