"""Keeps each tenant's requests on the endpoints that are theirs."""
