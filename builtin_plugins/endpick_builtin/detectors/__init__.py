"""Saturation detectors: how full the pool is."""
