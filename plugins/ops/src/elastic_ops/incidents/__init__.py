"""`elastic incidents`: the failures of runs, from run directories or a store."""
