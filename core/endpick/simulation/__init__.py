"""A simulated model server: a pure model of an inference engine and an OpenAI-compatible server around it."""
