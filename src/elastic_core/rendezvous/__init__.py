"""How agents find each other and agree on rounds."""
