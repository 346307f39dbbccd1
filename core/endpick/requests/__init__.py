"""The life of one inference request: parsing, deciding, and what happens after the decision."""
