"""The GPU side: claims jobs, runs an engine, writes each job's event log."""
