"""Policies of flow control: fairness, ordering, usage limits and eviction."""
