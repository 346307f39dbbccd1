"""The serving process: from a plan to a port that answers, and back to nothing."""
