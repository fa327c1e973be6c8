"""Predictions → metrics → scores; how reliable and how fast."""
