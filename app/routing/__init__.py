"""From a request to the pools that may answer it: pure functions."""
