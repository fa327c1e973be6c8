"""Checkpoints and saved runs → the paper's tables, figures and analyses, and one report of all of them."""
