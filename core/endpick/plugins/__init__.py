"""The plugin host: finds, checks, loads and builds plugins."""
