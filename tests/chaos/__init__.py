"""Chaos: the whole system under a seeded schedule of deaths, with readers that check every token."""
