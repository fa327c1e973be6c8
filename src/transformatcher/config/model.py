"""The keys of [model] → ModelConfig, with a table of its own for each kind of refiner."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator
from pydantic.dataclasses import dataclass

from transformatcher.config.check import CHECKED, broken_rule

RESNETS = ("resnet50", "resnet50_v1", "resnet101")
TIMM = "timm:"  # and the name of any network that timm has, with or without a tag
REFINERS = ("match2match", "nc4d", "cats")  # those with weights, each with a table of its own

Variant = Literal["paper", "released", "raw"]


def _square(value: Any) -> Any:
    """One number stands for the two sides of a square."""
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


def _list(value: Any) -> Any:
    """One number stands for a list of it."""
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


Pixels = Annotated[StrictInt, Field(ge=32, le=4096)]
Cells = Annotated[StrictInt, Field(ge=2, le=128)]
Stage = Annotated[StrictInt, Field(ge=1, le=4)]
Layer = Annotated[StrictInt, Field(ge=0, le=1000)]


@dataclass(frozen=True, config=CHECKED)
class Match2MatchConfig:
    """The paper's refiner: blocks of attention between matches, and 4-D convolutions beside them if wanted."""

    dim: StrictInt = Field(default=16, ge=1, le=1024, description="channels of a match")
    depth: StrictInt = Field(default=6, ge=0, le=64, description="attention blocks")
    heads: StrictInt = Field(default=8, ge=1, le=64, description="attention heads")
    head_dim: StrictInt = Field(default=4, ge=1, le=256, description="channels of a head")
    ffn_ratio: StrictInt = Field(default=4, ge=1, le=16, description="hidden channels of a block's MLP, times `dim`")
    attention: Literal["paper", "released", "vanilla", "linformer", "performer"] = Field(
        default="paper", description="kind of attention, see [the architecture](architecture.md#attention)"
    )
    max_matches: StrictInt = Field(
        default=12**4, ge=1, le=10**6, description="vanilla attention refuses more matches than this"
    )
    linformer_rank: StrictInt = Field(default=64, ge=1, le=4096, description="keys that remain in linformer attention")
    performer_features: StrictInt = Field(
        default=16, ge=1, le=4096, description="random features of each query and key in performer attention"
    )
    position: Literal["axial", "checkerboard", "none", "absolute", "absolute-table"] = Field(
        default="axial",
        description="position embedding; absolute: a learned vector for each cell of each axis; "
        "absolute-table: a learned vector for each match",
    )
    rotary_base: StrictFloat = Field(
        default=100.0,
        ge=1,
        le=1e6,
        description="axial position: frequency f of F rotates by base^(−f/F) radians for each cell",
    )
    rotary_frequencies: StrictInt | None = Field(
        default=None, ge=1, le=1024, description="frequencies of each axis; None: as many as fit into the heads"
    )
    conv_branch_depth: StrictInt = Field(
        default=0, ge=0, le=16, description="4-D convolutions beside the blocks, added to their output; 0: none"
    )
    conv_branch_kernel: StrictInt = Field(
        default=3, ge=1, le=9, description="kernel size of these convolutions along each axis, odd"
    )
    conv_branch_mutual_filter: StrictBool = Field(
        default=True, description="soft mutual nearest-neighbour filter before these convolutions"
    )

    @model_validator(mode="after")
    def _kernel_is_odd(self) -> "Match2MatchConfig":
        if self.conv_branch_kernel % 2 == 0:
            raise broken_rule(self, "conv_branch_kernel", "must be odd")
        return self


@dataclass(frozen=True, config=CHECKED)
class NC4DConfig:
    """Neighbourhood consensus (NC-Net's idea): 4-D convolutions alone."""

    dim: StrictInt = Field(default=16, ge=1, le=256, description="channels between the convolutions")
    depth: StrictInt = Field(default=3, ge=1, le=16, description="convolutions")
    kernel: StrictInt = Field(default=3, ge=1, le=9, description="kernel size along each axis, odd")
    mutual_filter: StrictBool = Field(
        default=True, description="soft mutual nearest-neighbour filter before the convolutions"
    )

    @model_validator(mode="after")
    def _kernel_is_odd(self) -> "NC4DConfig":
        if self.kernel % 2 == 0:
            raise broken_rule(self, "kernel", "must be odd")
        return self


@dataclass(frozen=True, config=CHECKED)
class CATsConfig:
    """Cost aggregation (CATs' idea): attention between the cells of one image."""

    dim: StrictInt = Field(default=32, ge=1, le=1024, description="channels of a cell")
    depth: StrictInt = Field(default=1, ge=1, le=32, description="rounds of two attention blocks")
    heads: StrictInt = Field(default=8, ge=1, le=64, description="attention heads")
    head_dim: StrictInt = Field(default=4, ge=1, le=256, description="channels of a head")
    ffn_ratio: StrictInt = Field(default=4, ge=1, le=16, description="hidden channels of a block's MLP, times `dim`")


@dataclass(frozen=True, config=CHECKED)
class CoarseToFineConfig:
    """Matching in several passes: whole photos first, then crops around the object. Nothing of it is trained."""

    passes: StrictInt = Field(
        default=1, ge=1, le=4, description="1: whole photos alone, as in the paper, and no other key here has an effect"
    )
    region: Literal["points", "object"] = Field(
        default="points",
        description="points: crop around the points that are asked for and their first matches; object: around the "
        "object that the features point out, so that no point depends on what else is asked for",
    )
    src_margin: StrictFloat = Field(
        default=0.35, ge=0, le=4, description="of the source's crop, times the longer side of the points' box"
    )
    trg_margin: StrictFloat = Field(default=0.5, ge=0, le=4, description="the same for the target's crop")
    object_margin: StrictFloat = Field(
        default=0.15, ge=0, le=4, description="of both crops with region `object`, times the longer side of its box"
    )
    min_side: StrictFloat = Field(
        default=0.25, ge=0.01, le=1, description="the least side of a crop, as a part of the photo's"
    )
    min_enlargement: StrictFloat = Field(
        default=1.1, ge=1, le=1e4, description="pairs that crops would enlarge less are not matched again"
    )
    coarse_weight: StrictFloat = Field(
        default=0.5, ge=0, le=1e4, description="weight of the scores of all earlier passes, against those of a pass"
    )
    kernel_sigma: StrictFloat = Field(
        default=2.5, ge=0.01, le=1e4, description="width of the Gaussian kernel, in cells of the upsampled target crop"
    )
    agreement: StrictBool = Field(
        default=True,
        description="with five points or more, prefer where the other points expect a point (region `points` only)",
    )
    mirror_average: StrictBool = Field(
        default=False, description="average each pass with the one of both photos mirrored: better, at twice the time"
    )


@dataclass(frozen=True, config=CHECKED)
class ModelConfig:
    """Everything that defines a model. The defaults are the paper's; [variants](#variants) change several at once."""

    variant: Variant = Field(
        default="paper", description="a set of values for other keys, see [Variants](#variants); given keys win"
    )
    image_size: Annotated[tuple[Pixels, Pixels], BeforeValidator(_square)] = Field(
        default=(240, 240),
        description="(height, width) that images are resized to, without keeping their aspect ratio; one number for a "
        "square",
    )
    backbone: StrictStr = Field(
        default="resnet101",
        description="`resnet50`, `resnet50_v1` or `resnet101`; or `timm:NAME`, any network of timm: "
        "`timm:vit_small_patch14_dinov2`",
    )
    stages: Annotated[tuple[Stage, ...], BeforeValidator(_list)] = Field(
        default=(3, 4),
        description="stages of a ResNet; torchvision's layer3 and layer4 are conv4_x and conv5_x of the paper",
    )
    layers: Annotated[tuple[Layer, ...] | Literal["all", "every-other"], BeforeValidator(_list)] = Field(
        default="all",
        description="backbone layers, each a channel of the correlation. ResNets: bottlenecks of these stages, "
        "numbered from 0. timm: blocks of a transformer or stages of a CNN, numbered as in its "
        "forward_intermediates; `all` stages are those whose cells are 16 pixels or more",
    )
    correlation: Literal["resize-correlation", "resize-features"] = Field(
        default="resize-correlation",
        description="what is interpolated to the common grid: the 4-D maps, or the features before them",
    )
    grid: Annotated[tuple[Cells, Cells] | None, BeforeValidator(_square)] = Field(
        default=None, description="(height, width) of the correlation map; None: that of the finest chosen layer"
    )
    layer_fusion: Literal["multi", "concat", "mean"] = Field(
        default="multi",
        description="multi: a correlation channel for each layer; concat: one, of the layers' concatenated features; "
        "mean: one, the mean of the layers' maps",
    )
    refiner: Literal["match2match", "nc4d", "cats", "none"] = Field(
        default="match2match",
        description="what refines the correlation, with its own table of keys: match2match: attention between matches "
        "(the paper); nc4d: 4-D convolutions; cats: attention between cells; none: the mean of the raw correlation",
    )
    correlation_skip: StrictFloat = Field(
        default=0.0,
        ge=0,
        le=1e4,
        description="weight of the mean raw correlation in the refined map; 0: without, as in the paper",
    )
    refiner_scale: StrictFloat = Field(
        default=1.0, ge=0, le=1e4, description="weight of the refiner's output in the refined map"
    )
    match2match: Match2MatchConfig = Field(default=Match2MatchConfig(), description="with refiner `match2match`")
    nc4d: NC4DConfig = Field(default=NC4DConfig(), description="with refiner `nc4d`")
    cats: CATsConfig = Field(default=CATsConfig(), description="with refiner `cats`")
    upsample: StrictInt = Field(
        default=2, ge=1, le=16, description="factor for each axis of the refined map, before the flow is computed"
    )
    kernel_on: Literal["logits", "probabilities", "none"] = Field(
        default="logits", description="what the Gaussian kernel around the peak multiplies"
    )
    kernel_sigma: StrictFloat = Field(
        default=10.0, ge=0.01, le=1e4, description="width of the Gaussian kernel, in cells of the upsampled grid"
    )
    temperature: StrictFloat = Field(default=1.0, ge=1e-4, le=1e4, description="divides the scores before the softmax")
    sampler: Literal["soft", "bilinear"] = Field(default="soft", description="how a keypoint is read from the flow")
    sampler_threshold: StrictFloat = Field(
        default=0.05, ge=1e-3, le=4, description="radius of the soft sampler at test time, normalised"
    )
    sampler_threshold_train: StrictFloat = Field(default=0.1, ge=1e-3, le=4, description="the same, in training")
    coarse_to_fine: CoarseToFineConfig = Field(
        default=CoarseToFineConfig(), description="matching in several passes, at test time only"
    )

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        _check_backbone(self)
        if not self.stages or list(self.stages) != sorted(set(self.stages)):
            raise broken_rule(self, "stages", "choose one or more of 1, 2, 3, 4, in rising order")
        if not isinstance(self.layers, str) and (not self.layers or list(self.layers) != sorted(set(self.layers))):
            raise broken_rule(self, "layers", "choose one or more, each once, in rising order")
        if self.correlation_skip + self.refiner_scale == 0:
            raise broken_rule(self, "refiner_scale", "must be above 0 if correlation_skip is 0")
        return self


def _check_backbone(config: ModelConfig) -> None:
    if config.backbone.startswith(TIMM) and config.backbone != TIMM:
        if config.stages != (3, 4):
            raise broken_rule(config, "stages", "only ResNets have stages; choose layers of networks of timm")
    elif config.backbone not in RESNETS:
        near = difflib.get_close_matches(config.backbone, RESNETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "networks of timm are called timm:NAME"
        raise broken_rule(config, "backbone", f"expected one of {', '.join(RESNETS)}, or timm:NAME; {hint}")


# Keys that a trained model does not depend on: how its refined map is read out.
READ_OUT = (
    "refiner_scale", "upsample", "kernel_on", "kernel_sigma", "temperature", "sampler", "sampler_threshold",
    "coarse_to_fine",
)  # fmt: skip
INPUT = ("image_size",)  # nor on this one, unless it has weights for single cells of the grid

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "released": {
        "correlation": "resize-features",
        "match2match": {"attention": "released", "position": "checkerboard"},
    },
    # No learned refiner. Cosines differ by hundredths where learned logits differ by units, hence the temperature. Of
    # 0.005, 0.01, 0.02, 0.05, with the Gaussian on logits or probabilities and σ of 1.5, 3, 5, 10, this and the paper's
    # own Gaussian (logits, 10) were the best on PF-PASCAL val at α = 0.1.
    "raw": {"refiner": "none", "correlation": "resize-features", "temperature": 0.02, "sampler": "bilinear"},
}
