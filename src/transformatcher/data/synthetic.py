"""Seed → a pair of images with an exactly known correspondence: the target is the source after a homography."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.ndimage import gaussian_filter, map_coordinates

from transformatcher.coords import norm_to_px
from transformatcher.schema import ImagePair, Size


@dataclass(frozen=True)
class Homography:
    """An invertible projective map of points in [-1, 1]², source → target."""

    matrix: Float[np.ndarray, "3 3"]

    def __call__(self, points_norm: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 2"]:
        """Map points."""
        homogeneous = np.concatenate([points_norm, np.ones_like(points_norm[..., :1])], axis=-1) @ self.matrix.T
        return homogeneous[..., :2] / homogeneous[..., 2:]

    def inverse(self) -> "Homography":
        """Target → source."""
        return Homography(np.linalg.inv(self.matrix))


def random_homography(rng: np.random.Generator, strength: float = 1.0) -> Homography:
    """Rotation to ±30°, scale 0.7 to 1.3, shift to ±0.2, shear and a little perspective; 0 strength is the identity."""
    angle, shear, tilt_x, tilt_y = rng.uniform(-1, 1, 4) * np.array([np.pi / 6, 0.15, 0.08, 0.08]) * strength
    scale = 1 + rng.uniform(-0.3, 0.3) * strength
    shift = rng.uniform(-0.2, 0.2, 2) * strength
    cos, sin = np.cos(angle), np.sin(angle)
    affine = np.array([[cos, -sin + shear, shift[0]], [sin, cos, shift[1]], [0, 0, 1 / scale]])
    return Homography(affine + np.array([[0, 0, 0], [0, 0, 0], [tilt_x, tilt_y, 0]]))


def random_texture(rng: np.random.Generator, size: Size) -> Float[np.ndarray, "h w 3"]:
    """Smooth coloured blobs at several scales, in [0, 255], so that every region looks different."""
    h, w = size
    layers = [gaussian_filter(rng.standard_normal((h, w, 3)), (s, s, 0)) for s in (2, 5, 12)]
    mixed = sum(layer / layer.std() for layer in layers)
    low, high = mixed.min(), mixed.max()
    return (mixed - low) / (high - low) * 255


def synthetic_pair(
    seed: int, size: Size = (120, 160), n_points: int = 8, strength: float = 1.0
) -> tuple[ImagePair, Homography]:
    """A pair with ``n_points`` keypoints that lie inside both images, and the exact map from source to target."""
    rng = np.random.default_rng(seed)
    forward = random_homography(rng, strength)
    texture = random_texture(rng, size)
    h, w = size
    ys, xs = np.mgrid[0:h, 0:w] + 0.5  # pixel centres
    trg_norm = np.stack([xs / w, ys / h], axis=-1) * 2 - 1
    src_px = norm_to_px(forward.inverse()(trg_norm), size) - 0.5
    warped = np.stack(
        [map_coordinates(texture[..., c], [src_px[..., 1], src_px[..., 0]], order=1, mode="mirror") for c in range(3)],
        axis=-1,
    )
    src_points = np.empty((0, 2))
    while len(src_points) < n_points:
        candidates = rng.uniform(-0.9, 0.9, (4 * n_points, 2))
        inside = (np.abs(forward(candidates)) < 0.95).all(axis=1)
        src_points = np.concatenate([src_points, candidates[inside]])[:n_points]
    trg_points = norm_to_px(forward(src_points), size)
    box = np.concatenate([trg_points.min(axis=0), trg_points.max(axis=0)])
    pair = ImagePair(
        name=f"synthetic-{seed}",
        category="synthetic",
        src_image=texture.round().astype(np.uint8),
        trg_image=warped.round().astype(np.uint8),
        src_kps_px=norm_to_px(src_points, size),
        trg_kps_px=trg_points,
        visible=np.ones(n_points, dtype=bool),
        trg_bbox_px=box,
    )
    return pair, forward
