"""The demo: sends the same requests to simulated model servers under two configurations and compares the results."""
