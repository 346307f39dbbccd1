"""Turns a configuration into a plan that is proven to fit together, before anything is built. Start with `planner.make_plan`."""
