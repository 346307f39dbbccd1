"""The checks of the conformance kit, one module per part of a plugin.

- `declarations`: is what a plugin says about itself complete and true?
- `conduct`: does it read, write and block no more than it may, whatever its kind?
- `lifecycle`: does it start, stop, and leave nothing behind?
- `filters_and_pickers`: do filters and pickers answer with candidates?
- `scorers`: do scorers rate every endpoint, in range?
- `request_path`: do profile handlers and the kinds around scheduling cope with every request and response?
- `flow_control`: do policies choose what waits, and answer limits and orders that fit?
- `data_layer`: do data sources, data collectors and discoveries cope with servers and payloads that misbehave?

`testing.kit` calls it. It may import the rest of `testing` except `kit`, and what `testing` may import.
"""
