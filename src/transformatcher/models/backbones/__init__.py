"""Image → features of several layers. ``backbone.py`` is the interface; ``resnet.py`` and ``timm.py`` implement it."""
