"""Matches → refined matches: one block of the matcher (section 4.2)."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.models.rotary import Grid4


class Block(nn.Module):
    """Pre-norm residual block: attention over all matches, then a small MLP on each."""

    def __init__(self, attention: nn.Module, dim: int, ffn_ratio: int) -> None:
        super().__init__()
        self.final = False  # set by models/inference.py: weights will not change, so models/fast.py may keep …
        self.folded: Any = None  # … what it makes of them
        self.norm_attention = nn.LayerNorm(dim)
        self.attention = attention
        self.norm_ffn = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn_ratio * dim), nn.GELU(), nn.Linear(ffn_ratio * dim, dim))

    def forward(self, x: Float[Tensor, "b t d"], grid: Grid4) -> Float[Tensor, "b t d"]:
        """Matches of ``grid`` → refined matches."""
        x = x + self.attention(self.norm_attention(x), grid)
        return x + self.ffn(self.norm_ffn(x))
