"""Real clients against real processes: what their users call must work unchanged."""
