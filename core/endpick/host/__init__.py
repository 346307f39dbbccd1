"""The plugin host: finds installed plugins, loads and checks them, and turns a configuration into a proven plan.

Start with `planning.planner.make_plan`.
"""
