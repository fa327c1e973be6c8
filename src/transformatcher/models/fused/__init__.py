"""The same mathematics as the rest of ``models/``, faster: fewer passes over the matches, and Triton kernels on CUDA.

Given its two global vectors, an additive-attention layer is a linear map of every (normalised) match, and each global
vector is a softmax-weighted sum of matches. So a block needs three passes over the matches, and never stores its
queries, keys and values:

- ``pool``, twice: matches → a few weighted sums of them;
- ``update``: matches → matches, by a small matrix made from those sums, then the block's MLP.

Matches are stored with channels first, ``(b, d, t)``. ``fold.py`` turns weights into the small matrices, ``passes.py``
has the passes in PyTorch and ``triton_*.py`` in Triton, ``stages.py`` runs whole stages with them, ``dispatch.py``
chooses the implementation, and ``inference.py`` prepares a trained model.
"""
