"""`endpoint-health`: keeps requests away from model servers that fail, hang, sleep or fall silent."""
