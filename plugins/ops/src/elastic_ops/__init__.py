"""Commands that read runs of elastic-core, and send requests to their agents."""
