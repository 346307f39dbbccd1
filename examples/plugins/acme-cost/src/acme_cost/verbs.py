"""The verbs of this distribution. `endpick --help` imports this table, so it stays light."""

VERBS = {"costs": ("acme_cost.command:costs", "List the endpoints of a file, the cheapest first.")}
