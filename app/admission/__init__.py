"""Which requests may begin, in which order, and which are turned away. Nothing here knows of HTTP or Ray."""
