"""Experiments: spec -> data -> model -> training -> records."""
