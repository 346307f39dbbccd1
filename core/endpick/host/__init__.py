"""Finds, loads and checks plugins, and plans a configuration. Start with `planning.planner.make_plan`."""
