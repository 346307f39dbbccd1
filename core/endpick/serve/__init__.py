"""The serving process: `main.run` is its entry point; `process.serve` starts its parts."""
