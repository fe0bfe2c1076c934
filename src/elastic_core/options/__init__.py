"""The options of a run: their declarations, the user's choices, and the resulting settings."""
