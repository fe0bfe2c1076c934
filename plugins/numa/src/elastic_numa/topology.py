"""The processors that share a core, a cache, a socket or a NUMA node, from sysfs."""

import os
from collections.abc import Collection
from pathlib import Path

from elastic_core.api import ConfigError

SYSFS = Path("/sys")
_CACHES_OF_DATA = ("Unified", "Data")


class Topology:
    """The allowed processors, and what they share. Files are read at first use, each once.

    Args:
        sysfs: Directory of the kernel's files; tests have a tree of their own.
        allowed: The allowed processors. `None` means those of this thread.
    """

    def __init__(self, sysfs: Path = SYSFS, *, allowed: Collection[int] | None = None) -> None:
        """Read which processor is on which node."""
        self.sysfs = sysfs
        self.allowed = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
        self._nodes = self._read_nodes()
        self._node_of = {cpu: node for node, cpus in self._nodes.items() for cpu in cpus}
        self._cores: dict[int, int] = {}
        self._caches: dict[int, int] = {}
        self._sockets: dict[int, int] = {}

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes with allowed processors, in order."""
        return tuple(sorted(node for node, cpus in self._nodes.items() if cpus & self.allowed))

    def cpus_of_node(self, node: int) -> frozenset[int]:
        """Return the allowed processors of a node; empty if it has none, or does not exist."""
        return self._nodes.get(node, frozenset()) & self.allowed

    def node_of_pci(self, address: str) -> int:
        """Return the node of a PCI device; 0 if the kernel has none, as on machines with one node.

        Raises:
            ConfigError: there is no such device.
        """
        path = self.sysfs / "bus" / "pci" / "devices" / address / "numa_node"
        return max(0, int(self._text(path, f"the NUMA node of PCI device {address}")))

    def socket_of_node(self, node: int) -> int:
        """Return the socket of a node's first allowed processor."""
        cpu = min(self.cpus_of_node(node))
        if cpu not in self._sockets:
            path = self._cpu(cpu) / "topology" / "physical_package_id"
            self._sockets[cpu] = int(self._text(path, f"the socket of processor {cpu}"))
        return self._sockets[cpu]

    def core_of(self, cpu: int) -> int:
        """Return the lowest processor on the same physical core."""
        return self._shared(cpu, self._cores, self._cpu(cpu) / "topology" / "thread_siblings_list")

    def complex_of(self, cpu: int) -> int:
        """Return the lowest processor with the same largest cache; one of the node's if the kernel has no data."""
        if cpu not in self._caches:
            path = self._largest_cache(cpu)
            if path is None:
                self._caches[cpu] = min(self._nodes[self._node_of[cpu]])
            else:
                self._shared(cpu, self._caches, path)
        return self._caches[cpu]

    def _shared(self, cpu: int, known: dict[int, int], path: Path) -> int:
        if cpu not in known:
            shared = read_ranges(self._text(path, f"what processor {cpu} shares"))
            known.update(dict.fromkeys(shared | {cpu}, min(shared | {cpu})))
        return known[cpu]

    def _largest_cache(self, cpu: int) -> Path | None:
        """Return the file that lists the processors of the highest-level cache."""
        best: tuple[int, Path] | None = None
        for index in sorted((self._cpu(cpu) / "cache").glob("index[0-9]*")):
            try:
                kind, level = (index / "type").read_text().strip(), int((index / "level").read_text())
            except OSError:  # a virtual machine need not tell
                continue
            if kind in _CACHES_OF_DATA and (best is None or level > best[0]):
                best = (level, index / "shared_cpu_list")
        return None if best is None else best[1]

    def _cpu(self, cpu: int) -> Path:
        return self.sysfs / "devices" / "system" / "cpu" / f"cpu{cpu}"

    def _read_nodes(self) -> dict[int, frozenset[int]]:
        nodes = {}
        for path in (self.sysfs / "devices" / "system" / "node").glob("node[0-9]*/cpulist"):
            nodes[int(path.parent.name.removeprefix("node"))] = read_ranges(self._text(path, "a node's processors"))
        # A kernel without NUMA has none: all that there is counts as one node.
        return nodes or {0: self.allowed}

    def _text(self, path: Path, what: str) -> str:
        try:
            return path.read_text().strip()
        except OSError as error:
            hint = "without --numa-binding; /sys of the host must be visible in a container"
            raise ConfigError(f"{what} can't be read from {str(path)!r}: {error.strerror}", hint=hint) from error


def read_ranges(text: str) -> frozenset[int]:
    """Return the numbers of a list as the kernel writes it: `0-2,4,6-7`."""
    numbers: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def write_ranges(numbers: Collection[int]) -> str:
    """Return numbers as the kernel writes them."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
