"""The exporters: metrics and events from a run's feed."""
