"""The passes that match-to-match attention boils down to, in torch for any device and in Triton for CUDA.

Given its two global vectors, an additive-attention layer is a linear map of every (normalised) match; and each global
vector is a softmax-weighted sum of matches. So a block needs three passes over the matches and nothing as large as its
queries, keys and values:

- ``pool``, twice: matches → a few weighted sums of them;
- ``update``: matches → matches, by a small matrix made from those sums, then the block's MLP.

Matches are laid out channels first, ``(b, d, t)``. What turns weights into those small matrices is ``models/fast.py``.
"""
