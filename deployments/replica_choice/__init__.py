"""Which replica of a pool a request goes to."""
