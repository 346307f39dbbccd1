"""Transports carry gRPC messages to stream sessions and back. `h2` is the default; `grpcio` is the reference and fallback."""
