"""Images → features of a frozen backbone, each computed once: a matcher alone trains quickly, without a GPU, too."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from transformatcher.inference.feature_store import FeatureStore


class FeatureCache:
    """Features by the content of the image, in a folder of limited size; see :class:`FeatureStore`.

    They are kept, and returned also at the first time, as float16.

    Args:
        folder: of the files.
        limit: of all files together, in bytes.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.store = FeatureStore(folder, limit)
        self.computed = 0  # images that the backbone has seen

    def __deepcopy__(self, _memo: object) -> "FeatureCache":
        """The average of a model's weights has the same frozen backbone, and so the same features."""
        return self

    def __call__(self, backbone: nn.Module, images: Tensor) -> list[Tensor]:
        """The backbone's features of images (b, 3, h, w); of those that are not known yet, it computes them."""
        keys = [hashlib.blake2b(image.numpy().tobytes(), digest_size=16).hexdigest() for image in images.cpu()]
        known = {key: self.store.load(key, images.device) for key in dict.fromkeys(keys)}
        missing = [key for key, features in known.items() if features is None]
        if missing:
            with torch.no_grad():
                layers = backbone(images[[keys.index(key) for key in missing]])
            self.computed += len(missing)
            for row, key in enumerate(missing):
                features = [layer[row : row + 1].half().to(layer.dtype) for layer in layers]
                self.store.save(key, features)
                known[key] = features
        found = [known[key] or [] for key in keys]
        return [torch.cat(layer) for layer in zip(*found, strict=True)]
