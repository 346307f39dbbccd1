"""The life of one inference request: parsing, deciding, and what happens after the decision.

- `director`: in which order do the steps of a decision run? Start here: `Director`.
- `pipeline`: which plugins of a plan are called, and what do they miss when the gateway sends no bodies?
- `model`: what passes between the protocol and the director: a request as it came, the decision, and its life after that?
- `intake`: how does an HTTP request become the inference request that plugins see?
- `parsers`: which parser reads a body, and how does a request go on whose parser fails?
- `steps`: what do candidate filters, shedding, producers that answer at once, admission and pre-request do to a request?
- `producing`: how are producers that wait run, and for how long?
- `waiting`: where is a request while it waits for its turn, and what is its client told if it never comes?
- `turns`: when do the queues move, and by whose timer?
- `long_body`: how is a body kept that is too long to be copied at once?
- `large`: how does a request go on whose body another process parses?
- `weight`: how long would parsing a body hold the event loop?
- `memory`: what do all requests together hold, and which stage of overload follows from it?
- `response`: who is told while a response passes, and what is settled at its end?
- `added`: what may observers add to a response?
- `response_body`: what is read and rewritten in a response while it passes?

`serve`, `testing`, `planning`, `transport` and `extproc` call it. It may import `scheduling`, `datalayer` and every layer below them.
"""
