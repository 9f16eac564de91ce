"""The ingress, and what operates it: configuration, routing, the command line."""
