"""Finding, checking and wiring plugins: three entry-point groups, loaded by name only."""
