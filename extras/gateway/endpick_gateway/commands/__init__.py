"""The verb `up`."""
