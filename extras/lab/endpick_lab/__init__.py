"""Simulation: model servers, traces and virtual time around the real picker."""
