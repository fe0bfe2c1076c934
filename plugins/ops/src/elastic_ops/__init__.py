"""Commands that look at runs of elastic-core, and speak with their agents."""
