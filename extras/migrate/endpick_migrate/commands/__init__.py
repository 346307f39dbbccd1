"""The verb `migrate`."""
