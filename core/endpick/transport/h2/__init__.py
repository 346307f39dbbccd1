"""An HTTP/2 server for gRPC: framing and flow control of our own, HPACK from a library, no task per stream.

A map, from the socket inwards. Each module imports only modules below it; outside this package they import `transport.limits`,
`transport.methods`, `api.turns`, `extproc.stream` (sessions and the memory budget), `extproc.replies` (pieces that pass) and
`requests.model` (why a session is closed).

- `server`: the listening port and its connections, made by `transport.server`; imports `address` and `tls` of `transport`, too.
- `protocol`: one connection on its socket, called by asyncio: bytes and time go into a `Connection`, output comes out.
- `await_bridge`: the task in which a stream awaits what its session waits for. Not compiled, as it holds a coroutine.
- `connection`: one connection without its socket; calls the handler of each frame and turns errors into GOAWAY and RST_STREAM.
- `receive`: one handler for each type of frame: is it allowed here, and what does it do?
- `lifetime`: the states of a connection, from the preface to the last GOAWAY; drain, age and keepalive.
- `streams`: the streams of a connection: opens, feeds and closes their sessions.
- `send`: the output of a connection, as flow control allows.
- `short_way`: how a piece of a streamed answer passes from frame to frame, in one step.
- `stream`: the states of one stream (RFC 9113 section 5.1), and what is kept for it.
- `headers`: header blocks, put together and checked.
- `grpc`: gRPC messages, statuses and timeouts.
- `hpack`: header compression (RFC 7541).
- `frames`: frames and settings as bytes.
- `errors`: error codes, the two kinds of error, and the rates that a client must keep to.

On the way in, a message goes from `protocol` over `connection`, `receive` and `streams` to its session; on the way out, from `streams`
over `send` and `connection` to `protocol`. A piece of a streamed answer goes from `receive` to `send`, see `short_way`. Nothing but
`protocol`, `await_bridge` and `server` knows asyncio or the clock.
"""
