"""The verbs of the lab, for `endpick --help`."""

VERBS = {
    "simulate": ("endpick_lab.commands.simulate:command", "Try configurations on a trace, and compare them."),
    "tune": ("endpick_lab.commands.tune:command", "Search better weights and parameters on a trace."),
    "replay": ("endpick_lab.commands.replay:command", "Decide recorded requests again with another configuration."),
    "demo": ("endpick_lab.commands.demo:demo", "Route real traffic through Envoy to simulated model servers."),
    "sim-server": ("endpick_lab.commands.demo:sim_server", "Run one simulated model server."),
}
