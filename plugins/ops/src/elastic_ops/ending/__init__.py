"""`elastic stop` and `elastic drain`: the end of a run, or of some of its nodes, asked for from outside."""
