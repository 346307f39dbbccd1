"""Ten minutes of trouble: `make soak`. Well-behaved gateways must lose nothing."""
