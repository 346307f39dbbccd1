"""The demo: sends the same requests under two configurations and compares the results."""
