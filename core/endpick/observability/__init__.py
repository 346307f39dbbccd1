"""What endpick tells about itself: metrics, logs, faults."""
