"""Follows InferencePools and Pods of a Kubernetes cluster."""
