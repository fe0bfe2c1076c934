"""The options of a run: what each is, what the user chose, and the settings that come of it."""
