"""Attempts to take `endpick serve` down, class by class, and what a well-behaved gateway notices of each: `make attempts`.

- `catalogue`: what an attempt is, what it finds at hand, and what counts as a finding
- `picker`: the `endpick serve` that one attempt is made on
- `witness`: what gateways and probes noticed meanwhile
- `hostile`: runs one attempt until its time is up, in a process of its own
- `gateway`: what attempts send as a gateway that means harm: frames and messages, right or wrong
- `second`: a further picker that an attempt starts itself
- `streams`: whole exchanges on many streams, as windows allow
- `posing`, `api_server`: what attempts serve as a server that means harm
- `culprit`, `culprits`: plugins that do what an attempt tells them to
- `locked_site`: environments with a locked plugin, for the classes of `trust`
- `log_reading`: further pickers whose log is read, for those of `logs`
- the classes, each with what belongs to it: `bodies`, `answers`, `overload`, `pages`, `kept`, `together`, `queues`, `plugins`,
  `servers…`, `connections…`, `trust…`, `logs…`, `restarts`
"""
