"""The plugin host: finds, checks, loads and builds plugins.

- `catalog`: which class stands behind a plugin type, or why is there none? Start here: `PluginCatalog`.
- `kinds`: what does the host know about each kind of plugin?
- `discovery`: which plugin types are installed, and by which distribution?
- `metadata`: which distributions are on the import path?
- `requirements`: are their requirements met?
- `resolution`: which distribution may provide a plugin type that a configuration names?
- `identity`: is a distribution that calls itself endpick the one that runs?
- `record`: which files has a distribution brought, and does a file have its digest?
- `contents`: which files and modules does a distribution bring?
- `locating`: where would Python import a module from?
- `lock`: what does a lock file say?
- `lock_check`: is what is installed what was locked?
- `guard`: is what is imported, now or later, what was locked?
- `loader`: does a candidate load as a plugin, and whose fault is it when it does not?
- `importing`: what did the import of an entry point yield, print or raise?
- `failures`: what may plugin code raise without harm to the process?
- `attempt`: for how long is a plugin awaited that does not end when it is cancelled?
- `apart`: how are plugins kept from cancelling the task that calls them?
- `stretches`: for how long does what is awaited hold the event loop?
- `attributes`: is what the host reads of a plugin what it has to be?
- `tracebacks`: what is told of an exception that plugin code raised?
- `breaker`: when is an instance that fails left out, and when called again?
- `contract`: is the imported class a plugin of its kind?
- `instance`: how is a plugin built from its parameters, and what does the host know about the object?
- `loggers`: how does an instance log, under a name that `logging` does not keep?
- `elsewhere`: what does the double of an instance in another process add to its metrics?
- `parameters`: is a `parameters:` block right, and where is it wrong?
- `references`: which parameters name other instances?
- `schema`: which JSON Schema do the parameters of a plugin have?
- `plain_schema`: are a schema and a value surely right, told without the library that knows all of JSON Schema?
- `full_schema`: what is wrong with a schema, or with a value, by all of JSON Schema?
- `violation`: how is a wrong parameter described to its author?
- `hook_objects`: which hook objects are installed, and can they be loaded?
- `hooks`: how are the hook objects of a configuration called, and what when one fails?
- `trust`: what else decides which code runs?
- `health`: what is wrong with the installed plugins?

`cli`, `scaffold`, `serve`, `testing`, `planning`, `requests`, `scheduling`, `datalayer` and `observability` call it. It may import
`config`, `diagnostics` and `api`.
"""
