"""Pictures of photos, plots of numbers, warps."""
