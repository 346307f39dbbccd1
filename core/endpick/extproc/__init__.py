"""Envoy's external processing protocol without sockets: messages in, replies out.

- `session`: in which state is a stream, and which message leads to which state? Start here: `Session`.
- `phases`: in which state are the request and the response of a stream, and what does each of their messages change?
- `pieces`: what is in a body message?
- `headers`: what do the gateway's headers and metadata say, and which does a reply set?
- `replies`: how does each reply look, serialised?
- `measured`: how are streams counted and timed, where the operator asks for it?
- `stream`: what does a transport know of the session that it feeds?

`serve` and `transport` call it. It may import `requests` and every layer below it.
"""
