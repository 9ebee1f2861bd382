"""One module per group of targets."""
