"""Descriptors within what is pickled for a worker: by their place among those that it is given."""

received: list[int] = []
"""In a worker: the descriptors that came with its call."""


class Inherited:
    """What multiprocessing pickles in place of a descriptor; `detach` gives the worker's own."""

    def __init__(self, place: int) -> None:
        """Keep its place."""
        self.place = place

    def detach(self) -> int:
        """Return the descriptor, which is the caller's from now on."""
        return received[self.place]
