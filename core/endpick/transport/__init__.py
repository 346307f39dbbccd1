"""Transports carry gRPC messages to stream sessions: `h2` by default, `grpcio` as reference and fallback."""
