"""Choosing endpoints: scheduling profiles compiled to flat tuples, and the loop of the profile handler that runs them."""
