"""Plans a configuration before anything is built. Start with `planner.make_plan`."""
