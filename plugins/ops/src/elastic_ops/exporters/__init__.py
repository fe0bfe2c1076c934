"""The exporters: what becomes of a run's feed, as metrics and as events."""
