"""Parsers of request and response bodies, one module per API; JSON and gRPC bodies share `json_bodies` and `grpc_bodies`."""
