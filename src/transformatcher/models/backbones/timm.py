"""Image → features of chosen layers of any network that timm has: blocks of a transformer, stages of a CNN.

timm (an optional dependency) says how the network is built, what its input looks like and where its weights are. They
come from a local safetensors file or from the cache that timm uses, and are never fetched unless the caller says so.
"""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from transformatcher.errors import InputError, missing_package
from transformatcher.images import IMAGENET_MEAN, IMAGENET_STD
from transformatcher.models.correlation import finest_grid
from transformatcher.models.hub import hub_folder
from transformatcher.models.weights_io import load_strictly, read_safetensors, refuse_pickles
from transformatcher.schema import Size

COARSE = 16  # pixels: stages of a CNN with finer cells than these would make a grid of too many matches
OWN_WEIGHTS = "timm"  # the name of the weights that timm itself would load

Layers = Sequence[int] | Literal["all", "every-other"]


class TimmFeatures(nn.Module):
    """A network of timm that returns the feature maps of some of its layers.

    What those layers do not need, later blocks and the head, is left out altogether.

    Args:
        name: timm's, with or without a tag: "vit_small_patch14_dinov2", "convnext_tiny.dinov3_lvd1689m". The tag says
            which weights timm would load and how the images that they know are normalised.
        layers: numbered from 0 as in timm's ``forward_intermediates``: blocks of a transformer, stages of a CNN (where
            number 0 may be its stem). "all": every block, or those stages whose cells are 16 pixels or more, as in the
            paper; "every-other": every second of these, the deepest among them.
        image_size: (h, w) of the images to come. Networks that interpolate their position embedding take others, too.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, name: str, layers: Layers = "all", image_size: Size = (224, 224)) -> None:
        super().__init__()
        timm = import_timm(name)
        check_name(timm, name)
        with torch.device("meta"):  # without weights, to see what it is
            plan = timm.create_model(name, num_classes=0)
        if not hasattr(plan, "forward_intermediates"):
            raise InputError(f"backbone timm:{name}: timm gives no features between its layers; choose another")
        self.name = name
        self.patch = _patch(plan)
        self.options = _size_options(type(plan), image_size)
        self.fixed = image_size if "img_size" in self.options else None
        self._check_size(image_size)
        strides = [stage["reduction"] for stage in plan.feature_info]
        self.layers = choose_layers(layers, strides, name)
        self.norm = len(set(strides)) == 1  # a transformer's last norm serves all its blocks, as DINOv2 itself does
        try:
            net = timm.create_model(name, num_classes=0, **self.options)
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

    @property
    def n_layers(self) -> int:
        """How many feature maps an image gives, and so how many channels the correlation has."""
        return len(self.layers)

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """RGB images, normalised with ImageNet's statistics as all images here → one feature map for each layer."""
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
                f"{self.fixed[0]} × {self.fixed[1]}, and takes no others"
            )
        if self.patch is None or not any(side % patch for side, patch in zip(size, self.patch, strict=True)):
            return
        nearest = [
            f"{way} {' or '.join(str(n) for n in near(side, patch))}"
            for way, side, patch in zip(("height", "width"), size, self.patch, strict=True)
            if side % patch
        ]
        raise InputError(
            f"images of {size[0]} × {size[1]} pixels (h × w): timm:{self.name} cuts them into patches of "
            f"{self.patch[0]} × {self.patch[1]}; the nearest image_size has {', '.join(nearest)}"
        )

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _try_out(self, size: Size) -> tuple[Size, list[str]]:
        """The finest grid of features for images of this size, and the names of parameters that have no part in them.

        On the meta device, where tensors have shapes and gradients but no values.
        """
        ghosts = {key: torch.empty_like(p, device="meta").requires_grad_() for key, p in self.named_parameters()}
        buffers = {key: torch.empty_like(buffer, device="meta") for key, buffer in self.named_buffers()}
        images = torch.empty(1, 3, *size, device="meta")
        try:
            features = functional_call(self, ghosts | buffers, (images,))
        except (AssertionError, RuntimeError) as error:
            raise _not_of_size(self.name, size, self.net.pretrained_cfg, error) from error
        gradients = torch.autograd.grad([f.sum() for f in features], list(ghosts.values()), allow_unused=True)
        unused = [key for key, gradient in zip(ghosts, gradients, strict=True) if gradient is None]
        return finest_grid(features), unused


def import_timm(name: str) -> ModuleType:
    """The package, or an error that says how to get it."""
    try:
        import timm
    except ImportError as error:
        raise missing_package(f"backbone timm:{name}", "timm", "timm") from error
    return timm


def check_name(timm: ModuleType, name: str) -> None:
    """Refuse a network or a tag that timm does not know, and name the nearest that it does."""
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        known, given = timm.list_models(), architecture
    elif tag and not timm.models.is_model_pretrained(name):
        known, given = timm.list_models(f"{architecture}.*", pretrained=True), name
    else:
        return
    close = difflib.get_close_matches(given, known, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(f'timm:{word}' for word in close)}?" if close else "see timm.list_models()"
    raise InputError(f"backbone timm:{name}: timm {timm.__version__} has no such network; {hint}")


def choose_layers(layers: Layers, strides: Sequence[int], name: str) -> tuple[int, ...]:
    """Numbers of the layers to use, of a network whose layers have cells of ``strides`` pixels."""
    numbers = range(len(strides))
    if isinstance(layers, str):
        usual = [i for i in numbers if strides[i] >= COARSE or len(set(strides)) == 1] or [numbers[-1]]
        return tuple(usual if layers == "all" else usual[(len(usual) - 1) % 2 :: 2])
    if max(layers) >= len(strides):
        cells = f", with cells of {', '.join(map(str, strides))} pixels" if len(set(strides)) > 1 else ""
        raise InputError(
            f"layers = {list(layers)}: timm:{name} has {len(strides)}, numbered from 0 to {len(strides) - 1}{cells}"
        )
    return tuple(layers)


def near(side: int, patch: int) -> list[int]:
    """The multiples of ``patch`` around ``side``."""
    below = side // patch * patch
    return [n for n in (below, below + patch) if n]


def _patch(net: nn.Module) -> Size | None:
    """(h, w) of the patches that an image is cut into; None where they overlap or there are none."""
    embed = getattr(net, "patch_embed", None)
    size, proj = getattr(embed, "patch_size", None), getattr(embed, "proj", None)
    if not isinstance(size, tuple) or not isinstance(proj, nn.Conv2d) or proj.stride != size:
        return None
    h, w = size
    return h, w


def _size_options(kind: type[nn.Module], size: Size) -> dict[str, Any]:
    """What a network must be told to take images of this size."""
    known = inspect.signature(kind.__init__).parameters
    if "dynamic_img_size" in known:  # its position embedding stays as it was trained, and is interpolated
        return {"dynamic_img_size": True}
    return {"img_size": size} if "img_size" in known else {}


def _not_of_size(name: str, size: Size, cfg: Mapping[str, Any], error: Exception) -> InputError:
    own = " × ".join(map(str, cfg["input_size"][1:]))
    return InputError(
        f"images of {size[0]} × {size[1]} pixels (h × w): timm:{name} cannot take them ({error}); its own size is {own}"
    )


# ---------------------------------------------------------------- weights


def load_timm_weights(backbone: TimmFeatures, weights: str, *, download: bool = False) -> None:
    """Load ``weights`` into the backbone.

    Args:
        backbone: changed in place.
        weights: a .safetensors file with timm's key names, or those of a release that timm knows how to convert; or
            "timm": what timm itself would load, from the cache it uses.
        download: let huggingface_hub fetch timm's own weights where they are not in that cache.
    """
    path = _cached(backbone, download) if weights == OWN_WEIGHTS else Path(weights)
    refuse_pickles(path)
    if path.suffix != ".safetensors" and not path.exists():
        raise InputError(
            f"backbone weights {weights!r}: no such file; for timm:{backbone.name}, name a .safetensors file or "
            f"{OWN_WEIGHTS!r}, which stands for timm's own"
        )
    tensors, _ = read_safetensors(path)
    whole = _whole_network(backbone, tensors, path)
    wanted = backbone.net.state_dict()
    load_strictly(backbone.net, {key: value for key, value in whole.items() if key in wanted}, source=str(path))


def _whole_network(backbone: TimmFeatures, tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """All weights of the network, head included, as timm makes them of a file: renamed, resized, strictly."""
    timm = import_timm(backbone.name)
    head = backbone.net.pretrained_cfg["classifier"]
    first = head if isinstance(head, str) or not head else head[0]
    classes = len(tensors[f"{first}.weight"]) if f"{first}.weight" in tensors else 0
    overlay = {"state_dict": dict(tensors), "num_classes": classes, "label_offset": 0, "custom_load": False}
    try:
        whole = timm.create_model(
            backbone.name, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=classes, **backbone.options
        )
    except (RuntimeError, KeyError, ValueError, AssertionError, AttributeError) as error:
        words = " ".join(str(error).split())
        words = words if len(words) < 300 else words[:300] + " …"
        raise InputError(f"{path}: these weights do not fit timm:{backbone.name} ({words})") from error
    state: dict[str, Tensor] = whole.state_dict()
    return state


def _cached(backbone: TimmFeatures, download: bool) -> Path:
    """Where timm's own weights of this network lie."""
    cfg = backbone.net.pretrained_cfg
    home, file = cfg.get("hf_hub_id"), cfg.get("hf_hub_filename") or "model.safetensors"
    file = {"open_clip_pytorch_model.bin": "open_clip_model.safetensors"}.get(file, file)
    if not home or not file.endswith(".safetensors"):
        raise InputError(f"backbone timm:{backbone.name}: timm has no safetensors weights for it; name your own file")
    try:
        return hub_folder(home, [file], download=download) / file
    except InputError as error:
        raise InputError(f"backbone weights {OWN_WEIGHTS!r}: {error}; or name a .safetensors file") from error
