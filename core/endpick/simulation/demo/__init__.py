"""The demo: sends the same requests through Envoy to simulated model servers under two configurations, and compares the results.

- `runner`: what does `endpick demo` run, and what does it report? Start here: `run_demo`.
- `trial`: how is one configuration tried, and what does the live table show?
- `stack`: how are model servers, endpick and Envoy started?
- `envoy`: where is Envoy's binary, and what is its configuration?
- `processes`: how do child processes end with their parent?
- `load`: which chats are sent, and what is measured?
- `saturated`, `picture`: what does flow control change while there are too many requests, and how is that drawn?
- `prefix-aware.yaml`, `random-picker.yaml`: the two configurations; `flow-control.yaml`: that of a saturated pool.

`cli` calls it. It may import every layer below `cli`, and needs `simulation` and `planning`.
"""
