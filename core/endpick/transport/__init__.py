"""Transports: carry gRPC messages over HTTP/2 to stream sessions and back, on two interchangeable servers.

- `server`: what can a transport do, and which one is used? Start here: `Server`, `open_server`.
- `methods`: which gRPC methods does a port serve?
- `address`: where does it listen?
- `h2`: the default transport, endpick's own HTTP/2 server.
- `grpcio`: the reference transport, on the server of the gRPC project.
- `grpcio_door`: whose stream begins next, where many come at once?
- `grpcio_options`: what is grpcio told to limit by itself?
- `grpcio_guests`: which of its connections hold too much, are too many, or end too many streams before their answer?
- `grpcio_sockets`: what does the system know of them?
- `listener`: which connections does a port take?
- `rush`: whose connections are too many where they come faster than they can be taken?
- `seats`: how many may one address have, and which go where others need the room?
- `envelope`: how much of a message is not a body?
- `limits`: how much may a client ask for, and what is counted?
- `sweeps`: when is looked for what has taken too long?
- `tls`: which certificate does a port show?
- `validity`: from when to when is a certificate valid?
- `health`: is endpick alive, and ready for requests?
- `reflection`: which services does a port offer, for tools such as grpcurl?
- `descriptors`: which protobuf files describe those services?

`cli` and `serve` call it. It may import `extproc` and every layer below it.
"""
