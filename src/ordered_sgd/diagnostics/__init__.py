"""Diagnostics of a training beyond its error: calibration, selected samples, suspected label errors."""
