"""From a configuration document to a proven plan, and from a plan to what serves.

- `planner`: what does a configuration mean, and what is wrong with it? Start here: `make_plan`.
- `plan`: what does a plan consist of?
- `builder`: what is known, filled in and found wrong while a plan is made?
- `instances`: which instance does each entry under `plugins` define?
- `flow_control`: what does the document say of queues, with every policy found and every default filled in?
- `profiles`: which filters, scorers and picker run in which profile, and which handler chooses among the profiles?
- `degenerate`: which profiles would run, and decide in a way that their authors can hardly want?
- `request_plugins`: which parsers, candidate filters, saturation detector and endpoint discovery are used?
- `pool`: which endpoint discovery follows from flags, for a document that names none?
- `data`: which sources and collectors run, and which default producers are added?
- `subscriptions`: which instance produces the data that another one reads, and in which order do producers run?
- `references`: do the instances exist that parameters name, and in which order are instances built?
- `stand_ins`: what do plugins get in place of the instances that their parameters name?
- `compile`: how does a plan become a request path and a collection? Start here: `compile_plan`.
- `steps`: how is what takes long for a long configuration done in turns with requests?
- `document`: how does a plan look as JSON?
- `data_flow`: how does the data flow look as nodes and arrows, for Mermaid and Graphviz?
- `svg`: how does the data flow look as an SVG picture?

`cli`, `demo`, `serve` and `testing` call it. It may import `transport` and every layer below it.
"""
