"""The algorithm: selection, losses and the step; needs torch."""
