"""Attempts to take `endpick serve` down, class by class, and what a well-behaved gateway notices of each: `make attempts`.

- `catalogue`: what an attempt is, what it finds at hand, and what counts as a finding
- `picker`: the `endpick serve` that one attempt is made on
- `witness`: what gateways and probes noticed meanwhile
- `hostile`: runs one attempt until its time is up, in a process of its own
- `gateway`: what attempts send as a gateway that means harm: frames and messages, right or wrong
- the classes: `bodies`, `answers`, `overload`, `pages`, `plugins`, `servers`, `connections`, `trust`, `logs`, `restarts`
"""
