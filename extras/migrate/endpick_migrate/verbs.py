"""The verb `migrate`, for `endpick --help`."""

VERBS = {"migrate": ("endpick_migrate.commands.migrate:command", "Convert llm-d's arguments, Deployment or Helm values.")}
