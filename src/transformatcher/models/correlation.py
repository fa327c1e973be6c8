"""Features of two images → one similarity map for each layer, all on one 4-D grid (section 4.1)."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.errors import InputError
from transformatcher.models.backend import HasBackend
from transformatcher.models.fused import dispatch, stages
from transformatcher.models.resize4d import resize2d, resize4d
from transformatcher.schema import Size


def cosine_correlation(
    src: Float[Tensor, "b c hs ws"], trg: Float[Tensor, "b c ht wt"]
) -> Float[Tensor, "b hs ws ht wt"]:
    """ReLU of the cosine similarity of every source cell with every target cell (Eq. 4)."""
    return dot_correlation(F.normalize(src, dim=1), F.normalize(trg, dim=1))


def dot_correlation(src: Float[Tensor, "b c hs ws"], trg: Float[Tensor, "b c ht wt"]) -> Float[Tensor, "b hs ws ht wt"]:
    """ReLU of the dot product of every source cell with every target cell."""
    flat = src.flatten(2).transpose(1, 2) @ trg.flatten(2)  # (b, hs·ws, ht·wt)
    return flat.relu().reshape(src.shape[0], *src.shape[2:], *trg.shape[2:])


class MultiLevelCorrelation(nn.Module, HasBackend):
    """One correlation channel for each feature layer. The channels of a match are its input features later on.

    Args:
        resize: what is interpolated to the common grid. ``resize-correlation``: the 4-D maps, as in the paper.
            ``resize-features``: the normalised features (not normalised again), as in the released code; cheaper. On
            features that are never negative, such as those of a ResNet after its ReLU, the two are equal: there the
            correlation's own ReLU has no effect, and without it both are the same linear map.
        grid: (h, w) of the common grid; None: the finest grid among the layers, for each image.
        layer_fusion: ``multi``: one channel for each layer, as in the paper. The supplement's ablation compares two
            maps of one channel: ``mean`` of the layers' channels, and ``concat``, the cosine similarity of the
            concatenated features of all layers, which are resized first (``resize`` has no effect there).
    """

    def __init__(
        self,
        resize: Literal["resize-correlation", "resize-features"] = "resize-correlation",
        grid: Size | None = None,
        layer_fusion: Literal["multi", "concat", "mean"] = "multi",
    ) -> None:
        super().__init__()
        self.resize = resize
        self.grid = grid
        self.layer_fusion = layer_fusion

    def forward(
        self, src: Sequence[Float[Tensor, "b _ _ _"]], trg: Sequence[Float[Tensor, "b _ _ _"]]
    ) -> Float[Tensor, "b l hs ws ht wt"]:
        """Features of the same layers of both images, in the same order → the correlation, in [0, 1]."""
        if len(src) != len(trg) or not src:
            raise InputError(f"correlation needs the same layers of both images, got {len(src)} and {len(trg)} layers")
        src_grid, trg_grid = self.grid or finest_grid(src), self.grid or finest_grid(trg)
        if self.layer_fusion == "concat":
            # Not normalised layer by layer: that would give the mean of the layers' cosines again.
            src, trg = [concatenated(src, src_grid)], [concatenated(trg, trg_grid)]
        corr = self._correlate(src, trg, src_grid, trg_grid)
        return corr.mean(dim=1, keepdim=True) if self.layer_fusion == "mean" else corr

    def _correlate(
        self, src: Sequence[Tensor], trg: Sequence[Tensor], src_grid: Size, trg_grid: Size
    ) -> Float[Tensor, "b l hs ws ht wt"]:
        if dispatch.use_triton(self.backend, src[0]):
            return stages.correlate(src, trg, src_grid, trg_grid, relu_first=self.resize == "resize-correlation")
        maps = []
        for f_src, f_trg in zip(src, trg, strict=True):
            if self.resize == "resize-features":
                f_src, f_trg = F.normalize(f_src, dim=1), F.normalize(f_trg, dim=1)
                maps.append(dot_correlation(resize2d(f_src, src_grid), resize2d(f_trg, trg_grid)))
            else:
                maps.append(resize4d(cosine_correlation(f_src, f_trg), src_grid, trg_grid))
        return torch.stack(maps, dim=1)


def concatenated(features: Sequence[Float[Tensor, "b _ _ _"]], grid: Size) -> Float[Tensor, "b c h w"]:
    """Features of all layers, resized to one grid and concatenated along the channels."""
    return torch.cat([resize2d(feature, grid) for feature in features], dim=1)


def finest_grid(features: Sequence[Float[Tensor, "b _ _ _"]]) -> Size:
    """The (h, w) of the layer with the most cells."""
    h, w = max((feature.shape[-2:] for feature in features), key=lambda hw: hw[0] * hw[1])
    return h, w
