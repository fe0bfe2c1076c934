"""Writes and reads the records that workers leave about their failures. The hook in a failing worker imports it."""
