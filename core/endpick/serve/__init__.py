"""The serving process: `main.run` is its entry point, and `process.serve` shows the order in which parts start."""
