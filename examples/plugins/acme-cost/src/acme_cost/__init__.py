"""Picks the cheapest of the endpoints that are about as good as the best."""
