"""llm-d's endpoint picker, which is written in Go, and endpick under the same load: `make bench-go GO_EPP=/path/to/epp`."""
