"""Transports: gRPC messages in and out of stream sessions, over HTTP/2, on two interchangeable servers."""
