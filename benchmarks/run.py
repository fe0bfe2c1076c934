"""The command line of the benchmarks: measures, prints each figure when it is there, and writes them all as JSON."""

import argparse
import importlib.util
import os
import platform
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from benchmarks import compare, names, results
from benchmarks.bench import CHECK, FULL, SIZES, Bench, Size
from benchmarks.launchers import ALL, Launcher, beside, clean_environment, ft_launcher, version_of
from benchmarks.measure import Measure, MeasureError, MissingError, Samples, in_turns
from benchmarks.registry import MEASURES, select
from benchmarks.results import LATEST, PUBLISHED, Document, Machine, Result, ResultsError
from benchmarks.stats import FT_LAUNCHER, OTHER, TORCHRUN
from benchmarks.table import as_text


def main(argv: list[str] | None = None) -> None:
    """Do what the command line asks for.

    Raises:
        SystemExit: with a text for wrong arguments; with 1 if a measure failed, or `--check` found a loss.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.schema:
        print(results.schema().decode())
        return
    if arguments.list:
        for measure in MEASURES:
            for name, figure in measure.figures.items():
                print(f"{name:<28} {figure.title}, {figure.unit}{'' if measure.promised else ' (only if named)'}")
        return
    size = arguments.size or (CHECK if arguments.check else FULL)
    if arguments.save and (arguments.only or arguments.beside or arguments.no_torch or size != FULL):
        parser.error("--save writes a whole run: leave out --only, --size, --no-torch and --beside")
    clean = clean_environment(os.environ)
    os.environ.clear()
    os.environ.update(clean)
    launchers, versions = _launchers(arguments)
    if arguments.save and TORCHRUN not in launchers:
        raise SystemExit("--save writes ratios to torchrun, and torch is not installed. Try: make bench-save")
    try:
        published = results.load(PUBLISHED) if arguments.check else None
    except ResultsError as error:
        raise SystemExit(str(error)) from error
    figures = select(MEASURES, arguments.only)
    if published is not None:
        figures = {name: measure for name, measure in figures.items() if name in published.figures}
    runner = Runner(launchers, size)
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    if runner.load > len(os.sched_getaffinity(0)) / 2:
        print(f"the machine is busy (load {runner.load:.1f}): intervals will be wide, and ratios may be wrong")
    if TORCHRUN in launchers and (warning := names.warning(names.longest_lookup_s())):
        print(warning)
    try:
        runner.measure(figures)
    finally:  # also after Ctrl-C: what was measured is not lost
        document = runner.document(versions)
        results.save(document, arguments.json)
        print(f"\n{arguments.json}")
    ok = not runner.failed
    if published is not None:
        ok = passes(published, document, runner, versions) and ok
    if arguments.save and ok:
        results.save(document, PUBLISHED)
        print(f"{PUBLISHED}\nNow run make docs-tables, and correct README's figures (tests/promises names them).")
    if not ok:
        raise SystemExit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="measure these figures: names, or patterns ('start-*')",
    )
    parser.add_argument("--list", action="store_true", help="list the figures")
    parser.add_argument("--size", choices=list(SIZES), help="how much is measured; smallest shows that it works")
    parser.add_argument("--no-torch", action="store_true", help="leave out torchrun and all that needs torch")
    parser.add_argument(
        "--nvrx", type=Path, metavar="VENV", help="a virtual environment with nvidia-resiliency-ext: adds ft_launcher"
    )
    parser.add_argument(
        "--beside", type=Path, metavar="VENV", help="a virtual environment with another elastic-core, as an older one"
    )
    parser.add_argument("--json", type=Path, default=LATEST, help="where results are written")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of results")
    parser.add_argument("--save", action="store_true", help="write the committed results, if nothing failed")
    parser.add_argument(
        "--check", action="store_true", help="compare the ratios with the committed ones; exit 1 if one has lost"
    )
    return parser


def _launchers(arguments: argparse.Namespace) -> tuple[dict[str, Launcher], dict[str, str]]:
    """Return who takes part, and the versions of all."""
    torch = not arguments.no_torch and importlib.util.find_spec("torch") is not None
    launchers = {name: launcher for name, launcher in ALL.items() if torch or name != TORCHRUN}
    versions = {"Python": platform.python_version(), "elastic-core": metadata.version("elastic-core")}
    if torch:
        versions["torch"] = metadata.version("torch")
    if arguments.nvrx is not None:
        launchers[FT_LAUNCHER] = ft_launcher(arguments.nvrx)
        versions["nvidia-resiliency-ext"] = version_of("nvidia-resiliency-ext", arguments.nvrx)
    if arguments.beside is not None:
        launchers[OTHER] = beside(arguments.beside)
        versions[OTHER] = version_of("elastic-core", arguments.beside)
    return launchers, versions


@dataclass
class Runner:
    """Measures figures, one measure after the other."""

    launchers: dict[str, Launcher]
    size: str
    figures: dict[str, Result] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: bool = False
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    def measure(self, figures: dict[str, Measure], *, size: str | None = None) -> None:
        """Measure figures and print them, replacing earlier results.

        Args:
            figures: By name, each with its measure, which is taken once for all of them.
            size: Another one than the runner's.
        """
        ours = SIZES[size or self.size]
        measures = list({id(measure): measure for measure in figures.values()}.values())
        minutes = max(1, round(sum(measure.seconds for measure in measures) * ours.share / 60))
        print(f"{len(figures)} figures, about {minutes} minute{'s' * (minutes > 1)}", flush=True)
        for measure in measures:
            names, began_s = [name for name in measure.figures if name in figures], time.monotonic()
            samples = self._samples(measure, names, ours)
            for name in (name for name in names if name in samples):
                self.figures[name] = results.result(measure.figures[name], samples[name])
                print(f"\n{name}: {as_text(self.figures[name])}", flush=True)
            print(f"({time.monotonic() - began_s:.0f} s)", flush=True)

    def _samples(self, measure: Measure, names: list[str], size: Size) -> Samples:
        """Take a measure, once more if it fails; nothing, and a note of the reason, if it can't be taken."""
        for last in (False, True):
            try:
                with tempfile.TemporaryDirectory(prefix="elastic-bench-") as folder, ExitStack() as stack:
                    os.environ["XDG_RUNTIME_DIR"] = os.environ["TMPDIR"] = folder
                    takes = measure.takes(Bench(Path(folder), self.launchers, size, stack))
                    return in_turns(measure, takes, size.turns(measure.seconds))
            except MeasureError as error:
                print(f"\n{', '.join(names)}: {error}", file=sys.stderr, flush=True)
                missing = isinstance(error, MissingError)
                if missing or last:
                    self.failed |= not missing
                    self.left_out |= dict.fromkeys(names, str(error).splitlines()[0])
                    break
        return {}

    def document(self, versions: dict[str, str]) -> Document:
        """Return all results."""
        machine = Machine(
            cores=len(os.sched_getaffinity(0)),
            processor=_processor(),
            kernel=platform.release(),
            load=round(self.load, 1),
            load_at_the_end=round(os.getloadavg()[0], 1),
        )
        date = time.strftime("%Y-%m-%d", time.gmtime())
        return Document(1, date, self.size, machine, versions, self.figures, self.left_out)


def passes(published: Document, document: Document, runner: Runner, versions: dict[str, str]) -> bool:
    """Return whether no figure has lost; a figure that seems to have is measured once more first, for its full time."""
    for line in compare.elsewhere(published, document):
        print(f"another machine: {line}; ratios can differ for that reason")
    doubtful = compare.lost(compare.compare(published, document))
    if doubtful:
        print(f"\nonce more, at full length: {', '.join(doubtful)}", flush=True)
        runner.measure({name: select(MEASURES, [name])[name] for name in doubtful}, size=FULL)
        document = runner.document(versions)
    comparisons = compare.compare(published, document)
    print(f"\n{compare.as_text(comparisons)}")
    lost = compare.lost(comparisons)
    print(f"\nlost: {', '.join(lost)}" if lost else "\nnothing has lost")
    return not lost


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
