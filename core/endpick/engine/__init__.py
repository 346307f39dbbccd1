"""One assembled picker, for `endpick serve` and for the tools that decide without serving."""
