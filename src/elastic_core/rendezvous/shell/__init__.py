"""The shell of a member: the thread that carries out what its machine wants, and what its agent gets of that."""
