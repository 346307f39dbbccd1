"""The serving process: builds a plan into ports that answer, reloads it, and drains.

`main.run` is the entry point, and `process.serve` shows the order in which parts start. May import every layer below `cli`.
"""
