"""Data sources and collectors: HTTP pages, OTLP pushes, pool documents, response headers and endpoint changes."""
