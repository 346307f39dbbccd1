"""The verbs of the gateway, for `endpick --help`."""

VERBS = {"up": ("endpick_gateway.commands.up:command", "Run a gateway: Envoy and the picker, in front of model servers.")}
