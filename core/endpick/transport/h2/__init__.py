"""An HTTP/2 server for gRPC streams. Only `server` and `SocketConnection` know sockets and the clock."""
