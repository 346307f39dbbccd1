"""A gateway of its own: Envoy as a child process in front of the picker."""
