"""Baselines of the ablations: softmax attention, learned position embeddings, cost aggregation."""
