"""What endpoints are like right now: the endpoint table, who fills it, and the proof that everybody's data gets there."""
