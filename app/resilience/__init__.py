"""What is done when a pool fails: another one is asked, or it is left alone for a while. Nothing here knows of Ray."""
