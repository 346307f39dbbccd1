"""An HTTP/2 server for gRPC streams. Only `protocol` and `server` know asyncio and the clock; everything below them is sans-IO."""
