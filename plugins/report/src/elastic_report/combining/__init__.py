"""Combines what was found about a run, from all its nodes, into one report. Pure: no file, no clock."""
