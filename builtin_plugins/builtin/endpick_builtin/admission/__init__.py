"""Admission: saturation detectors, admitters and candidate filters."""
