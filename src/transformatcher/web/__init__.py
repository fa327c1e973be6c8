"""Servers: the studio, a page on a folder of photos and its project; and predictions for Label Studio."""
