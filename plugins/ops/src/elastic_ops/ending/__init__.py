"""`elastic stop` and `elastic drain`: end a run, or some of its nodes, from outside."""
