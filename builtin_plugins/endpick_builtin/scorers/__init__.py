"""Scorers: how good each endpoint would be for a request, from 0 to 1."""
