"""Config → matcher: the one place where names become modules."""

from collections.abc import Sequence
from functools import partial

from torch import nn

from transformatcher.config import TIMM, Match2MatchConfig, ModelConfig
from transformatcher.errors import InputError
from transformatcher.models.attention import PaperAttention, ReleasedAttention
from transformatcher.models.backbones.resnet import ResNetFeatures, grid_of
from transformatcher.models.backbones.timm import TimmFeatures
from transformatcher.models.baselines.cats import CostAggregation
from transformatcher.models.baselines.learned_position import AxisVectors, MatchVectors
from transformatcher.models.baselines.softmax_attention import LinformerAttention, PerformerAttention, VanillaAttention
from transformatcher.models.correlation import MultiLevelCorrelation
from transformatcher.models.flow import KernelSoftArgmax
from transformatcher.models.match2match import MatchToMatch, MeanCorrelation
from transformatcher.models.neighbourhood_consensus import NeighbourhoodConsensus
from transformatcher.models.rotary import AxialRotary, Checkerboard, Grid4, NoPosition, Position
from transformatcher.models.sampler import Sampler, bilinear_sample, soft_sampler
from transformatcher.models.transformatcher import TransforMatcher
from transformatcher.schema import Size


def build_matcher(config: ModelConfig) -> TransforMatcher:
    """A matcher with random weights, in evaluation mode."""
    backbone: ResNetFeatures | TimmFeatures
    chosen: Sequence[int] | None = None  # of the backbone's layers; None: all
    if config.backbone.startswith(TIMM):  # which computes no others than those chosen
        backbone = TimmFeatures(config.backbone.removeprefix(TIMM), config.layers, config.image_size)
        n_layers, grid = backbone.n_layers, backbone.grid
    else:
        backbone = ResNetFeatures(config.backbone, config.stages)
        layers = _layers(config, backbone.n_layers)
        chosen = None if config.layers == "all" else layers
        n_layers, grid = len(layers), grid_of(config.image_size, backbone.stage_of_layer[min(layers)])
    return TransforMatcher(
        backbone=backbone,
        correlation=MultiLevelCorrelation(config.correlation, config.grid, config.layer_fusion, chosen),
        refiner=build_refiner(config, n_layers if config.layer_fusion == "multi" else 1, config.grid or grid),
        readout=KernelSoftArgmax(config.upsample, config.kernel_sigma, config.temperature, config.kernel_on),
        sampler=_sampler(config, config.sampler_threshold),
        train_sampler=_sampler(config, config.sampler_threshold_train),
    ).eval()


def build_refiner(config: ModelConfig, layers: int, grid: Size | None = None) -> nn.Module:
    """The part between correlation and flow, for a correlation of ``layers`` channels.

    Some parts have weights for each cell of the correlation's ``grid``; None: that of the finest stage.
    """
    h, w = grid or config.grid or grid_of(config.image_size, min(config.stages))
    gains = {"raw_gain": config.correlation_skip, "block_gain": config.refiner_scale}
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
                place=_place(blocks, (h, w, h, w)),
                consensus=_conv_branch(blocks, layers),
                **gains,
            )


def _layers(config: ModelConfig, n: int) -> Sequence[int]:
    """Numbers of the layers to use, of the backbone's n."""
    if config.layers == "all":
        return range(n)
    if config.layers == "every-other":
        return range((n - 1) % 2, n, 2)  # the deepest is one of them
    if max(config.layers) >= n:
        raise InputError(
            f"layers = {list(config.layers)}: {config.backbone} has {n} layers in stages {list(config.stages)}, "
            f"numbered from 0 to {n - 1}"
        )
    return config.layers


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
    """The 4-D convolutions beside the blocks, if there are any."""
    if config.conv_branch_depth == 0:
        return None
    return NeighbourhoodConsensus(
        layers, config.dim, config.conv_branch_depth, config.conv_branch_kernel, config.conv_branch_mutual_filter
    )


def _place(config: Match2MatchConfig, grid: Grid4) -> nn.Module | None:
    kind = {"absolute": AxisVectors, "absolute-table": MatchVectors}.get(config.position)
    return kind(config.dim, grid) if kind else None


def _position(config: Match2MatchConfig) -> Position:
    if config.position == "axial":
        return AxialRotary(config.heads, config.head_dim, config.rotary_base, config.rotary_frequencies)
    return Checkerboard() if config.position == "checkerboard" else NoPosition()


def _sampler(config: ModelConfig, threshold: float) -> Sampler:
    return bilinear_sample if config.sampler == "bilinear" else soft_sampler(threshold)
