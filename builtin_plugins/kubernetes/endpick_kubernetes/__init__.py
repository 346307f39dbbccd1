"""Kubernetes discovery for endpick: follows an InferencePool and its Pods, and elects a leader by a Lease."""
