"""A standalone gateway: the picker with Envoy as a child process."""
