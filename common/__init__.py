"""What API pods and workers share: keys, records, the event log, errors, settings. Imports neither of them."""
