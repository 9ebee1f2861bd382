"""Batches: many requests in one file, their answers in another. See docs/batch.md."""
