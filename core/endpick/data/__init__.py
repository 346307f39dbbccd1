"""The endpoint table, and the discovery and collection that keep it current."""
