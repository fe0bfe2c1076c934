"""`elastic plugins check`: the kits against a plugin that is installed, for people who never write a test."""
