"""Two images → the position on the second image of every point of the first. Start reading here.

images (b, 3, h, w) → features [(b, c, hl, wl)] → correlation (b, l, hs, ws, ht, wt) → refined (b, hs, ws, ht, wt)
→ flow (b, 2·hs, 2·ws, 2) → keypoints (b, n, 2). Each arrow is one part, passed to the constructor, and can be replaced.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.models.backend import Backend, HasBackend
from transformatcher.models.sampler import Sampler
from transformatcher.schema import Flow

Features = Sequence[Float[Tensor, "b _ _ _"]]


class TransforMatcher(nn.Module):
    """The whole method of the paper (section 4, Figure 3).

    Args:
        backbone: image → features of several layers. Both images pass through the same network.
        correlation: features of both images → one similarity map for each layer, all on one 4-D grid (section 4.1).
        refiner: ``(b, l, hs, ws, ht, wt)`` → ``(b, hs, ws, ht, wt)``, one score for each candidate match. The paper's
            is :class:`~transformatcher.models.match2match.MatchToMatch` (section 4.2).
        readout: refined map → dense flow, after 4-D upsampling (sections 4.2 and 4.3).
        sampler: flow and source keypoints → target keypoints (section 4.4).
        train_sampler: replaces ``sampler`` in training mode; None: the same.
    """

    def __init__(
        self,
        backbone: nn.Module,
        correlation: nn.Module,
        refiner: nn.Module,
        readout: nn.Module,
        sampler: Sampler,
        train_sampler: Sampler | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.correlation = correlation
        self.refiner = refiner
        self.readout = readout
        self.sampler = sampler
        self.train_sampler = train_sampler or sampler
        # Called as (backbone, images) in place of the backbone; a training sets it that keeps those of a frozen one.
        self.feature_cache: Callable[[nn.Module, Tensor], Features] | None = None

    def forward(self, src: Float[Tensor, "b 3 h w"], trg: Float[Tensor, "b 3 h2 w2"]) -> Flow:
        """Images of both sides, normalised with ImageNet's mean and deviation → dense flow from source to target."""
        return self.match(*self.encode_pair(src, trg))

    def encode_pair(self, src: Float[Tensor, "b 3 h w"], trg: Float[Tensor, "b 3 h2 w2"]) -> tuple[Features, Features]:
        """Images of both sides → features of both sides."""
        if src.shape != trg.shape:
            return self.encode(src), self.encode(trg)
        features = self.encode(torch.cat([src, trg]))  # one batch of both is faster than two batches
        return [f[: len(src)] for f in features], [f[len(src) :] for f in features]

    def encode(self, images: Float[Tensor, "b 3 h w"]) -> Features:
        """Images → features. They depend on one image alone, so callers may cache them."""
        weight = next(self.backbone.parameters(), images)
        images = images.to(weight.dtype)
        return self.backbone(images) if self.feature_cache is None else self.feature_cache(self.backbone, images)

    def match(self, src: Features, trg: Features) -> Flow:
        """Features of both sides → dense flow from source to target."""
        return self.readout(self.refine(src, trg))

    def refine(self, src: Features, trg: Features) -> Float[Tensor, "b hs ws ht wt"]:
        """Features of both sides → one score (a logit) for each candidate match."""
        return self.refiner(self.correlation(src, trg))

    def transfer(self, flow: Flow, src_kps_norm: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n 2"]:
        """Source keypoints → target keypoints, both in [-1, 1]²."""
        sampler = self.train_sampler if self.training else self.sampler
        return sampler(flow.trg_norm, src_kps_norm)

    def set_backend(self, backend: Backend) -> None:
        """Choose the implementation of all stages: ``auto``, ``fused`` or ``eager``; see :class:`HasBackend`."""
        for module in self.modules():
            if isinstance(module, HasBackend):
                module.set_backend(backend)
