"""A model server that can be simulated: a pure engine model, and an OpenAI-compatible server around it."""
