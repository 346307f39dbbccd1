"""Pictures for docs/explanation/architecture.md, drawn from calls that were observed in a running endpick."""
