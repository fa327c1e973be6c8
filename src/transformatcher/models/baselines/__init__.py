"""What the ablations compare with: other attentions, learned positions, cost aggregation."""
