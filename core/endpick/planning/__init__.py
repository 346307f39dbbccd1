"""From a configuration document to a proven plan, and from a plan to what serves."""
