"""Measurements: what the queue costs and what it adds, beside what the same engine does without it."""
