"""A gateway of endpick's own: Envoy as a child process, configured and kept current by the picker."""
