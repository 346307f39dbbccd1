"""Data sources: where payloads come from."""
