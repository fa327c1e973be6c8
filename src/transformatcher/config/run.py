"""The keys of [data] and [train] → DataConfig and TrainConfig; with a model, all of a training run."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator
from pydantic.dataclasses import dataclass

from transformatcher.config.check import CHECKED, broken_rule
from transformatcher.config.model import ModelConfig
from transformatcher.data.benchmarks import BENCHMARKS

if TYPE_CHECKING:
    BenchmarkName = str
else:
    BenchmarkName = Literal[tuple(BENCHMARKS)]

Alpha = Annotated[StrictFloat, Field(gt=0, le=1)]


@dataclass(frozen=True, config=CHECKED)
class PairSet:
    """A split of a benchmark."""

    benchmark: BenchmarkName = Field(description="the layout of the folder; `coco` for your own data")
    folder: StrictStr = Field(description="in `root`")
    split: StrictStr = Field(default="trn", description="`trn`, `val` or `test`")


@dataclass(frozen=True, config=CHECKED)
class PairSource(PairSet):
    """Where pairs come from."""

    weight: StrictFloat = Field(
        default=1.0, gt=0, le=1e6, description="of the pairs of an epoch, in proportion to the other sources' weights"
    )
    self_pairs: StrictBool = Field(
        default=False, description="training: pair each object with itself, by random points in two crops"
    )
    limit: StrictInt | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="only so many pairs, evenly spaced in the list; validation on coco: how many",
    )


@dataclass(frozen=True, config=CHECKED)
class DataConfig:
    """Which pairs are trained on, and how they are augmented. Every `p_…` is a probability."""

    train: tuple[PairSource, ...] = Field(description="what is trained on")
    validate: tuple[PairSource, ...] = Field(description="what the best checkpoint is chosen on")
    root: StrictStr = Field(default="data", description="the folder that the sources' folders are in")
    exclude_images_of: tuple[PairSet, ...] = Field(
        default=(),
        description="sets of pairs (`benchmark`, `folder`, `split`) whose images, known by their file names, are not "
        "trained on",
    )
    pairs_per_epoch: StrictInt | None = Field(
        default=None, ge=1, le=10**9, description="None: as many as the lists of pairs hold"
    )
    image_cache: Literal["auto", "device", "host", "disk"] = Field(
        default="auto", description="where decoded images are kept"
    )
    cache_size: StrictInt = Field(
        default=320, ge=8, le=4096, description="side of the square that cached images are resized to"
    )
    threads: StrictInt = Field(default=4, ge=1, le=256, description="threads that decode images")
    workers: StrictInt = Field(
        default=4, ge=0, le=256, description="processes that draw samples, at most one for each core; 0: none"
    )
    p_color: StrictFloat = Field(default=0.2, ge=0, le=1, description="each of the seven changes of colour")
    p_crop: StrictFloat = Field(default=0.5, ge=0, le=1, description="a crop that keeps every keypoint")
    p_object_crop: StrictFloat = Field(
        default=0.0, ge=0, le=1, description="a crop around the object instead, if its box is known"
    )
    p_flip: StrictFloat = Field(default=0.0, ge=0, le=1, description="both images flipped left to right")
    p_swap: StrictFloat = Field(default=0.0, ge=0, le=1, description="source and target swapped")
    p_flip_target: StrictFloat = Field(
        default=0.0, ge=0, le=1, description="coco: the target alone flipped, its left and right keypoints swapped"
    )
    min_shared: StrictInt = Field(default=3, ge=1, le=1000, description="coco: keypoints visible in both images")
    min_overlap: StrictFloat = Field(
        default=0.0, ge=0, le=1, description="coco: shared keypoints as a fraction of those visible in either image"
    )
    min_object_scale: StrictFloat = Field(
        default=0.0, ge=0, le=1, description="coco: longer side of an object's box as a fraction of its image's"
    )
    balance_categories: StrictBool = Field(default=True, description="coco: draw all categories equally often")

    @model_validator(mode="after")
    def _check(self) -> "DataConfig":
        for key in ("train", "validate"):
            if not getattr(self, key):
                raise broken_rule(self, key, "name at least one source of pairs")
        endless = any(BENCHMARKS[item.benchmark].content == "objects" or item.self_pairs for item in self.train)
        if endless and self.pairs_per_epoch is None:
            rule = "must be given, because a source with coco or self_pairs has no end"
            raise broken_rule(self, "pairs_per_epoch", rule)
        return self


@dataclass(frozen=True, config=CHECKED)
class TrainConfig:
    """How weights are learned. The defaults are the paper's recipe (section 5, and the released code's batch size)."""

    seed: StrictInt = Field(default=0, ge=0, le=2**32 - 1, description="of all random numbers")
    epochs: StrictInt = Field(default=10, ge=1, le=100_000, description="passes over the pairs")
    batch_size: StrictInt = Field(default=16, ge=1, le=65_536, description="pairs of all processes together")
    accumulate: StrictInt = Field(
        default=1,
        ge=1,
        le=4096,
        description="parts of a batch that are computed one after the other, their gradients added: the memory of one "
        "part, the result of the whole batch (but batch norms in training mode see the parts)",
    )
    lr: StrictFloat = Field(default=1e-3, gt=0, le=10, description="learning rate of the refiner")
    lr_backbone: StrictFloat = Field(
        default=1e-5, ge=0, le=10, description="learning rate of the backbone; 0 freezes it"
    )
    lr_schedule: Literal["constant", "cosine"] = Field(default="constant", description="of both learning rates")
    warmup_steps: StrictInt = Field(default=0, ge=0, le=10**7, description="steps in which both rates rise from 0")
    weight_decay: StrictFloat = Field(default=0.0, ge=0, le=10, description="of the optimiser")
    max_grad_norm: StrictFloat | None = Field(
        default=None, ge=0, le=1e6, description="gradients are clipped to this norm; None or 0: not clipped"
    )
    ema_decay: StrictFloat | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="decay of an exponential moving average of the weights, which is then validated and saved; "
        "None or 0: no average",
    )
    batch_norm: Literal["train", "frozen"] = Field(
        default="train", description="`frozen` keeps the statistics of the backbone's batch norms"
    )
    w_regression: StrictFloat = Field(
        default=1.0, ge=0, le=1e6, description="weight of the squared distance (the paper's loss)"
    )
    w_cross_entropy: StrictFloat = Field(
        default=0.0, ge=0, le=1e6, description="weight of a cross-entropy over target cells"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="of the backbone; auto: bfloat16 on a GPU"
    )
    backbone_weights: StrictStr | None = Field(
        default=None,
        description="a .safetensors file; or, from the cache alone, torchvision's name for weights, or `timm` for "
        "timm's own",
    )
    init_from: StrictStr | None = Field(
        default=None,
        description="a checkpoint folder whose weights to start from; `shipped`: the model in the package",
    )
    feature_cache_gb: StrictFloat = Field(
        default=10.0,
        ge=0,
        le=1e5,
        description="disk space for the features of a frozen backbone, in the run's folder: on a CPU, where images are "
        "neither cropped nor recoloured at random; 0: none",
    )
    save_every: StrictInt = Field(default=500, ge=1, le=10**9, description="steps, besides each validation")
    validate_every: StrictInt = Field(default=1, ge=1, le=100_000, description="epochs")
    select_alphas: tuple[Alpha, ...] = Field(
        default=(0.1,), description="the best checkpoint has the highest PCK, averaged over these and the sets"
    )

    @model_validator(mode="after")
    def _check(self) -> "TrainConfig":
        if self.w_regression + self.w_cross_entropy == 0:
            raise broken_rule(self, "w_regression", "must be above 0 if w_cross_entropy is 0")
        if self.init_from and self.backbone_weights:
            raise broken_rule(self, "init_from", "brings its own backbone: leave backbone_weights out")
        return self


@dataclass(frozen=True, config=CHECKED)
class RunConfig:
    """All that a training run depends on."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig

    @model_validator(mode="after")
    def _check(self) -> "RunConfig":
        if self.model.refiner == "none" and self.train.lr_backbone == 0:
            raise broken_rule(self, "train.lr_backbone", "must be above 0: without a refiner, nothing else is trained")
        return self
