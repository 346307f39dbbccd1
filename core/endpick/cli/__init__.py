"""The command line: one module per verb, imported only when the verb is used.

- `process`: where does a process begin, and what does it take off the import path?
- `main`: which verbs are there? Start here: `main`.
- `console`: how do the verbs read a configuration, and how do they print diagnostics, tables and JSON?
- `outputs`: which shape does the JSON have that the verbs print?
- `quantities`: which durations and sizes may a flag have?
- `go_flags`: how is a command line read that is written for a Go program?
- `llm_d_flags`: which flags has llm-d, and what does each do here?

Verbs that serve requests:

- `serve`: `endpick serve` answers Envoy.
- `serve_options`: which options does it have?
- `serve_settings`: which settings of the process do they make?
- `migrate`: `endpick migrate` turns how llm-d is started into how endpick is.
- `helm_values`: how do the charts start llm-d with these values?
- `sim_server`: `endpick sim-server` runs one simulated model server.
- `demo`: `endpick demo` compares two configurations on real traffic.

Verbs for a configuration:

- `validate`: `endpick validate` tells every mistake in it.
- `plan`: `endpick plan` tells what it comes to, with everything that endpick fills in.
- `graph`: `endpick graph` draws which instance produces data for which other.
- `dry_run`: `endpick try` makes one decision and tells what every plugin said.
- `schema`: `endpick schema` prints the JSON Schema of it, of a plugin's parameters, or of what a verb prints.
- `explain`: `endpick explain` tells what a diagnostic means.

Verbs for plugins:

- `listing`: `endpick list` tells which plugin types are installed.
- `describe`: `endpick describe` tells everything about one plugin type.
- `describing`: what there is to tell about it, for the verb and for its page in the reference?
- `doctor`: `endpick doctor` tells what is wrong with the environment.
- `lock`: `endpick lock` pins which distribution provides which plugin type.
- `new`: `endpick new` makes a project for a new plugin.
- `test`: `endpick test` runs the conformance kit over installed plugins.

The `endpick` command and `python -m endpick` call it. It may import every other package.
"""
