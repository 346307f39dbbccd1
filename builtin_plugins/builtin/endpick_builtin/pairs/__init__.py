"""Plugins that come as filter and scorer."""
