"""The command line: one module per verb, imported when used. May import every other package."""
