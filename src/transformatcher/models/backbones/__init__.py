"""An image → features of several layers."""
