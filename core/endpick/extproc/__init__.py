"""Envoy's external processing protocol without sockets: messages in, replies out.

- `session`: in which state is a stream, and which message leads to which state? Start here: `Session`.
- `states`: which states are there, of a stream and of the request and the response in it, and what may follow in each?
- `request_phase`, `response_phase`: what does each message of the request, or of the response, change, and how is it answered?
- `modes`: how does the gateway hand over bodies?
- `pieces`: what is in a body message, told without protobuf?
- `heads`: what is in a message with headers, told without protobuf?
- `headers`: what do the gateway's headers and metadata say, and which does a reply set?
- `replies`: how does each reply look, serialised?

- `stream`: what does a transport know of the session that it feeds?

`serve` and `transport` call it. It may import `requests` and every layer below it.
"""
