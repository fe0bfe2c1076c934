"""torch.numa, under its name."""
