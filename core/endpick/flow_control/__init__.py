"""Queues for requests that find the pool full. Start at `FlowController`."""
