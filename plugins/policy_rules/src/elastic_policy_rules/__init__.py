"""Restart policies as rule files: `elastic run --policy rules.yaml`."""
