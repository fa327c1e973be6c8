"""Image → features of chosen layers of any timm network: blocks of a transformer, stages of a CNN.

timm is an optional dependency. It defines how the network is built and how its images are normalised.
"""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from transformatcher.errors import InputError, missing_package
from transformatcher.images import IMAGENET_MEAN, IMAGENET_STD
from transformatcher.models.backbones.backbone import Backbone, Layers, choose_layers
from transformatcher.models.correlation import finest_grid
from transformatcher.schema import Size

MIN_STRIDE = 16  # pixels: a stage of a CNN with smaller cells would give too many matches


class TimmFeatures(Backbone):
    """A timm network that returns the feature maps of some of its layers.

    Parts that those layers do not need, such as later blocks and the head, are removed.

    Args:
        name: timm's name, with or without a tag: "vit_small_patch14_dinov2", "convnext_tiny.dinov3_lvd1689m". The tag
            chooses the weights that timm would load, and how their images are normalised.
        layers: numbered from 0 as in timm's ``forward_intermediates``: blocks of a transformer, stages of a CNN (where
            number 0 may be its stem). "all": every block, or the stages whose cells are 16 pixels or larger, as in the
            paper; "every-other" of these, counted from the deepest; or their numbers.
        image_size: (h, w) of the images. Networks that interpolate their position embedding take other sizes, too.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, name: str, layers: Layers = "all", image_size: Size = (224, 224)) -> None:
        super().__init__()
        timm = import_timm(name)
        check_name(timm, name)
        with torch.device("meta"):  # without weights, to inspect its architecture
            plan = _create(timm, name)
        if not hasattr(plan, "forward_intermediates"):
            raise InputError(
                f"backbone timm:{name}: timm gives no features of its intermediate layers; choose another network"
            )
        self.name = name
        self.patch = _patch(plan)
        self.options = _size_options(type(plan), image_size)
        self.fixed = image_size if "img_size" in self.options else None
        self._check_size(image_size)
        strides = [stage["reduction"] for stage in plan.feature_info]
        one_stride = len(set(strides)) == 1
        cells = "" if one_stride else f" (cells of {', '.join(map(str, strides))} pixels)"
        self.layers = choose_layers(layers, usual_layers(strides), len(strides), f"timm:{name}{cells}")
        self.norm = one_stride  # apply a transformer's last norm to the features of all blocks, as DINOv2 does
        try:
            net = _create(timm, name, **self.options)
        except AssertionError as error:
            raise _not_of_size(name, image_size, plan.pretrained_cfg, error) from error
        if hasattr(net, "prune_intermediate_layers"):
            net.prune_intermediate_layers(list(self.layers), prune_norm=False, prune_head=True)
        self.net = net.eval()
        mean, std = (torch.tensor(net.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
        usual_mean, usual_std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
        self.register_buffer("scale", usual_std / std, persistent=False)
        self.register_buffer("shift", (usual_mean - mean) / std, persistent=False)
        self.grid, unused = self._try_out(image_size)
        for key in unused:
            module, _, parameter = key.rpartition(".")
            setattr(self.get_submodule(module), parameter, None)

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """RGB images, normalised with ImageNet's mean and deviation → one feature map for each chosen layer."""
        self._check_size((images.shape[2], images.shape[3]))
        found: list[Tensor] = self.net.forward_intermediates(
            images * self.scale + self.shift,
            indices=list(self.layers),
            norm=self.norm,
            stop_early=True,
            intermediates_only=True,
        )
        return found

    def _check_size(self, size: Size) -> None:
        if self.fixed is not None and size != self.fixed:
            raise InputError(
                f"images of {size[0]} × {size[1]} pixels (h × w): timm:{self.name} was built for "
                f"{self.fixed[0]} × {self.fixed[1]} and takes no other size"
            )
        if self.patch is None or not any(side % patch for side, patch in zip(size, self.patch, strict=True)):
            return
        nearest = [
            f"{way} {' or '.join(str(n) for n in near(side, patch))}"
            for way, side, patch in zip(("height", "width"), size, self.patch, strict=True)
            if side % patch
        ]
        raise InputError(
            f"images of {size[0]} × {size[1]} pixels (h × w): timm:{self.name} splits them into patches of "
            f"{self.patch[0]} × {self.patch[1]}; the nearest image_size has {', '.join(nearest)}"
        )

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _try_out(self, size: Size) -> tuple[Size, list[str]]:
        """The finest grid of features for images of this size, and the names of parameters that do not affect them.

        Runs on the meta device, where tensors have shapes and gradients but no values.
        """
        parameters = {key: torch.empty_like(p, device="meta").requires_grad_() for key, p in self.named_parameters()}
        buffers = {key: torch.empty_like(buffer, device="meta") for key, buffer in self.named_buffers()}
        images = torch.empty(1, 3, *size, device="meta")
        try:
            features = functional_call(self, parameters | buffers, (images,))
        except (AssertionError, RuntimeError) as error:
            raise _not_of_size(self.name, size, self.net.pretrained_cfg, error) from error
        gradients = torch.autograd.grad([f.sum() for f in features], list(parameters.values()), allow_unused=True)
        unused = [key for key, gradient in zip(parameters, gradients, strict=True) if gradient is None]
        return finest_grid(features), unused


def import_timm(name: str) -> ModuleType:
    """The timm package, or an error that tells how to install it."""
    try:
        import timm
    except ImportError as error:
        raise missing_package(f"backbone timm:{name}", "timm", "timm") from error
    return timm


def check_name(timm: ModuleType, name: str) -> None:
    """Raise for a network or tag that timm does not have, with the most similar names that it has."""
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        known, given = timm.list_models(), architecture
    elif tag and not timm.models.is_model_pretrained(name):
        known, given = timm.list_models(f"{architecture}.*", pretrained=True), name
    else:
        return
    close = difflib.get_close_matches(given, known, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(f'timm:{other}' for other in close)}?" if close else "see timm.list_models()"
    raise InputError(f"backbone timm:{name}: timm {timm.__version__} has no such network; {hint}")


def _create(timm: ModuleType, name: str, **options: Any) -> Any:
    """A network with random weights and without a head, on torch's default device."""
    try:
        return timm.create_model(name, num_classes=0, **options)
    except RuntimeError:
        if torch.get_default_device().type != "meta":
            raise
        # While timm 1.0.20 builds a transformer, it reads values of tensors, and tensors on the meta device have none.
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            return timm.create_model(name, num_classes=0, **options).to("meta")


def usual_layers(strides: Sequence[int]) -> list[int]:
    """All blocks of a transformer; the stages of a CNN with cells of 16 pixels or larger, or else its last stage."""
    one_stride = len(set(strides)) == 1
    return [i for i, stride in enumerate(strides) if stride >= MIN_STRIDE or one_stride] or [len(strides) - 1]


def near(side: int, patch: int) -> list[int]:
    """The multiples of ``patch`` around ``side``."""
    below = side // patch * patch
    return [n for n in (below, below + patch) if n]


def _patch(net: nn.Module) -> Size | None:
    """(h, w) of the patches that an image is split into; None if there are none, or if they overlap."""
    embed = getattr(net, "patch_embed", None)
    size, proj = getattr(embed, "patch_size", None), getattr(embed, "proj", None)
    if not isinstance(size, tuple) or not isinstance(proj, nn.Conv2d) or proj.stride != size:
        return None
    h, w = size
    return h, w


def _size_options(kind: type[nn.Module], size: Size) -> dict[str, Any]:
    """Arguments of timm's ``create_model`` for images of this size."""
    known = inspect.signature(kind.__init__).parameters
    # The windows of a Swin depend on the image size that it is built for. Newer versions of timm can also build it for
    # any size; they would change the shapes of its weights.
    if "dynamic_img_size" in known and "window_size" not in known:  # interpolates the trained position embedding
        return {"dynamic_img_size": True}
    return {"img_size": size} if "img_size" in known else {}


def _not_of_size(name: str, size: Size, cfg: Mapping[str, Any], error: Exception) -> InputError:
    own = " × ".join(map(str, cfg["input_size"][1:]))
    return InputError(
        f"images of {size[0]} × {size[1]} pixels (h × w): timm:{name} cannot take them ({error}); its own size is {own}"
    )
