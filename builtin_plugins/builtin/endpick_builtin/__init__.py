"""Built-in plugins: llm-d's plugin types."""
