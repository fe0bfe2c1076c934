"""The command line of the benchmarks."""

import argparse
import importlib.util
import json
import os
import platform
import tempfile
from importlib import metadata
from pathlib import Path

from benchmarks.launchers import ALL, beside, clean_environment
from benchmarks.measure import Result
from benchmarks.measures import FULL, MEASURES, QUICK, Bench
from benchmarks.stats import OTHER, TORCHRUN
from benchmarks.table import as_records, as_text

RESULTS = Path(__file__).parent / "results"


def main(argv: list[str] | None = None) -> None:
    """Measure, print each result when it is there, and write them all as JSON."""
    arguments = _arguments(argv)
    clean = clean_environment(os.environ)
    os.environ.clear()
    os.environ.update(clean)
    torch = not arguments.no_torch and importlib.util.find_spec("torch") is not None
    launchers = {name: launcher for name, launcher in ALL.items() if torch or name != TORCHRUN}
    if arguments.beside is not None:
        launchers[OTHER] = beside(_interpreter(arguments.beside))
    about = machine(torch)
    print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = os.environ["TMPDIR"] = folder
        bench = Bench(folder=Path(folder), launchers=launchers, size=QUICK if arguments.quick else FULL, torch=torch)
        for name in arguments.only or MEASURES:
            for result in MEASURES[name](bench):
                results.append(result)
                print(f"\n{as_text([result])}", flush=True)
    about["load at the end"] = f"{os.getloadavg()[0]:.1f}"
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"machine": about, "results": as_records(results)}, indent=2) + "\n")
    print(f"\n{arguments.json}")


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions: shows that it works, decides nothing")
    parser.add_argument("--only", action="append", choices=list(MEASURES), metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--no-torch", action="store_true", help="leave out torchrun and all that needs torch")
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="FOLDER",
        help="a virtual environment with another elastic-core, an older one say, measured in the same turns "
        "(start, restart, exit, help, agent, tee)",
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "latest.json", help="where results are written")
    return parser.parse_args(argv)


def _interpreter(environment: Path) -> Path:
    """Return the interpreter of a virtual environment, or say what is missing."""
    program = environment.absolute() / "bin" / "elastic"
    if not program.exists():
        raise SystemExit(f"--beside {environment}: there is no {program}. Try: pip install elastic-core into it")
    return program.with_name("python")


def machine(torch: bool) -> dict[str, str]:
    """Return what figures can't be compared without."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": _processor(),
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "torch": metadata.version("torch") if torch else "none",
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
