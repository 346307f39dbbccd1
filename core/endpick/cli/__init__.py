"""The command line: one module per verb, imported when the verb is used. `main` lists the verbs. May import every other package."""
