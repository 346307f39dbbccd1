"""The life of one inference request: parsing, the decision, and the response. Start with `director.Director`."""
