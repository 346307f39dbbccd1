"""An HTTP/2 server for gRPC streams: framing and flow control of our own, HPACK of a library, no task per stream."""
