"""Measurements on the simulated engine: what the queue adds. Everything is checked token by token."""
