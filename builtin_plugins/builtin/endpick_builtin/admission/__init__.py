"""Saturation detectors, admitters and candidate filters: decide about a request before its profiles run."""
