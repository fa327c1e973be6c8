"""Matches → refined matches: one block of the match-to-match transformer (section 4.2).

By default ``fused/`` computes the same function; ``model.set_backend("eager")`` runs this code.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from transformatcher.models.memo import Memo
from transformatcher.models.rotary import Grid4


class Block(nn.Module):
    """Pre-norm residual block: attention over all matches, then a small MLP on each match.

    Args:
        attention: a module ``(x, grid) → x`` for matches ``(b, t, dim)``.
        dim: channels of a match.
        ffn_ratio: hidden channels of the MLP, as a multiple of ``dim``.
    """

    def __init__(self, attention: nn.Module, dim: int, ffn_ratio: int) -> None:
        super().__init__()
        self.weights_frozen = False
        self.fused_cache: Memo[Any] = Memo()  # the folded weights of fused/fold.py, used once the weights are frozen
        self.norm_attention = nn.LayerNorm(dim)
        self.attention = attention
        self.norm_ffn = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn_ratio * dim), nn.GELU(), nn.Linear(ffn_ratio * dim, dim))

    def freeze_weights(self) -> None:
        """Promise that the weights will not change any more, so that they are folded once instead of at every call."""
        self.weights_frozen = True

    def forward(self, x: Float[Tensor, "b t d"], grid: Grid4) -> Float[Tensor, "b t d"]:
        """Matches of ``grid``, flattened in the order hs, ws, ht, wt → refined matches."""
        x = x + self.attention(self.norm_attention(x), grid)
        return x + self.ffn(self.norm_ffn(x))
