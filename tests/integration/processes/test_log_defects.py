"""What torchrun's logs get wrong, by the number that the list of its defects gives it, and what ours do instead."""

import os

CALM = "OMP_NUM_THREADS"  # set, so that nothing is said about it


def attempt_files(folder):
    """Return what is in the only attempt of the only run below a log directory, by path."""
    (attempt,) = folder.glob("*/attempt_*")
    return {str(path.relative_to(attempt)): path.read_text() for path in attempt.rglob("*") if path.is_file()}


def run(elastic, *args, **env):
    agent = elastic(*args, env={CALM: "1"} | env)
    assert agent.wait() == 0, agent.err
    return agent


def test_20_a_line_in_pieces_is_one_line_and_a_progress_bar_stays_one(elastic, script, tmp_path):
    path = script(
        "import sys\n"
        "for n in range(20):\n"
        "    print(f'part{n} ', end='', flush=True)\n"
        "print()\n"
        "for n in range(20):\n"
        "    print(f'\\r{n * 5:3d}% of rank', end='', file=sys.stderr, flush=True)\n"
        "print(file=sys.stderr)\n"
    )
    agent = run(elastic, "--nproc-per-node", "2", "-t", "3", "--log-dir", tmp_path / "logs", path)
    line = "".join(f"part{n} " for n in range(20))
    assert sorted(agent.out.splitlines()) == [f"[default{rank}]:{line}" for rank in (0, 1)]
    bar = [f"{n * 5:3d}% of rank" for n in range(20)]
    pieces = agent.err_path.read_bytes().decode().replace("\r", "\n").splitlines()
    for rank in (0, 1):
        assert [
            piece.removeprefix(f"[default{rank}]:") for piece in pieces if piece.startswith(f"[default{rank}]")
        ] == [
            "",  # in front of the first \r
            *bar,
        ]
    assert attempt_files(tmp_path / "logs")["1/stdout.log"] == f"{line}\n"


PRINTS = "import os, sys; rank = os.environ['RANK']; print('loss', rank); print('lost', rank, file=sys.stderr)"


def test_21_without_log_files_what_is_redirected_reaches_nobody(elastic, script):
    agent = run(elastic, "--nproc-per-node", "2", "--log-dir=/dev/null", "-r", "3", script(PRINTS))
    assert (agent.out, agent.err) == ("", "")


def test_21_without_log_files_filters_have_no_effect_and_say_so(elastic, script):
    filters = ("--duplicate-stdout-filters", "loss", "--duplicate-stderr-filters", "lost")
    agent = run(elastic, "--nproc-per-node", "2", "--log-dir=/dev/null", "-t", "3", *filters, script(PRINTS))
    assert sorted(agent.out.splitlines()) == ["[default0]:loss 0", "[default1]:loss 1"]
    told = [line for line in agent.err.splitlines() if line.startswith("elastic:")]
    assert len(told) == 2
    assert all("has no effect: with --log-dir /dev/null there are no log files" in line for line in told)


def test_21_without_log_files_the_filter_of_ranks_counts(elastic, script):
    common = ("--nproc-per-node", "3", "--log-dir=/dev/null", "--local-ranks-filter", "1")
    assert run(elastic, *common, script(PRINTS)).out == "loss 1\n"
    assert run(elastic, *common, "-t", "1", script(PRINTS)).out == "[default1]:loss 1\n"


def test_22_a_run_leaves_nothing_behind_in_the_directory_for_temporary_files(elastic, script, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    agent = run(elastic, script(PRINTS), TMPDIR=str(temporary))
    assert list(agent.runtime.glob("elastic-*/*-*")) == []
    run(elastic, script(PRINTS), TMPDIR=str(temporary), XDG_RUNTIME_DIR="")  # the run directory is there, too
    assert list(temporary.glob("elastic-*/*-*")) == []


def test_23_any_text_is_an_id_of_a_run(elastic, script, tmp_path):
    path = script("import os; print(os.environ['TORCHELASTIC_RUN_ID'])")
    for number, run_id in enumerate(("team/job", "../up", "ü b")):
        logs = tmp_path / f"logs{number}"
        run(elastic, "--rdzv-id", run_id, "--log-dir", logs, "-r", "3", path)
        assert attempt_files(logs)["0/stdout.log"] == f"{run_id}\n"
        assert len(os.listdir(logs)) == 1


def test_24_local_ranks_have_as_many_digits_as_they_like(elastic, tmp_path):
    workers = ("--no-python", "sh", "-c", "echo out $LOCAL_RANK; echo err $LOCAL_RANK >&2")
    agent = run(elastic, "--nproc-per-node", "12", "-r", "10:3,11:1", "--log-dir", tmp_path / "logs", *workers)
    files = attempt_files(tmp_path / "logs")
    assert files["10/stdout.log"] == "out 10\n"
    assert files["10/stderr.log"] == "err 10\n"
    assert files["11/stdout.log"] == "out 11\n"
    assert sorted(agent.out.splitlines()) == sorted(f"out {rank}" for rank in range(10))
    assert sorted(agent.err.splitlines()) == sorted(f"err {rank}" for rank in (*range(10), 11))


# --- beside torch's defects: filters and rotation


def test_filtered_lines_of_all_shown_workers_go_to_one_file_of_each_attempt(elastic, script, tmp_path):
    path = script(
        "import os, sys\n"
        "rank, restart = os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "for n in range(100): print(f'step {n} loss {n % 10} of {rank}')\n"
        "print(f'apple, pear of {rank}\\rapple,pear of {rank}', file=sys.stderr)\n"
        "sys.exit(rank == '0' and restart == '0')\n"
    )
    filters = ("--duplicate-stdout-filters", "loss 7,step 99", "--duplicate_stderr_filters", "apple,,p")
    ranks = ("--nproc-per-node", "3", "--local-ranks-filter", "0,1", "--max-restarts", "1")
    run(elastic, *ranks, *filters, "-t", "3", "--log-dir", tmp_path / "logs", path)
    kept = [n for n in range(100) if n % 10 == 7 or n == 99]
    for attempt in tmp_path.glob("logs/*/attempt_*"):
        lines = (attempt / "filtered_stdout.log").read_text().splitlines()
        for rank in (0, 1):
            expected = [f"[default{rank}]:step {n} loss {n % 10} of {rank}" for n in kept]
            found = [line for line in lines if line.startswith(f"[default{rank}]")]
            assert found == expected if rank == 0 else found == expected[: len(found)]  # rank 1 may be stopped
        assert {line[:10] for line in lines} <= {"[default0]", "[default1]"}
        assert "[default0]:apple,pear of 0\n" in (attempt / "filtered_stderr.log").read_text()
        assert "apple, " not in (attempt / "filtered_stderr.log").read_text()
    assert len(list(tmp_path.glob("logs/*/attempt_*/filtered_stdout.log"))) == 2


def test_rotation_loses_nothing_at_the_seams(elastic, script, tmp_path):
    path = script("import sys\nfor n in range(40_000): print(n, 'x' * (n % 97))")
    rotation = ("--log-max-size", "64K", "--log-backups", "500", "--log-dir", tmp_path / "logs")
    run(elastic, "--nproc-per-node", "2", "-r", "0:1", "-t", "1:1", *rotation, path)
    expected = "".join(f"{n} {'x' * (n % 97)}\n" for n in range(40_000))
    for rank in (0, 1):
        (folder,) = tmp_path.glob(f"logs/*/attempt_0/{rank}")
        full = sorted(folder.glob("stdout.log.*"), key=lambda path: -int(path.suffix[1:]))
        texts = [file.read_text() for file in (*full, folder / "stdout.log")]
        assert len(texts) > 30
        assert "".join(texts) == expected
        assert all(text.endswith("\n") for text in texts)
        assert all(len(text) <= (64 << 10) + 110 for text in texts)  # a line that was begun is ended where it began


def test_an_error_that_was_rotated_away_in_part_is_still_told(elastic, script, tmp_path):
    path = script("import sys\nsys.stderr.write('x' * 900 + '\\n')\nraise RuntimeError('the reason')")
    rotation = ("--log-max-size", "1K", "--log-dir", tmp_path / "logs", "-r", "2", "--no-worker-hooks")
    agent = elastic(*rotation, path)
    assert agent.wait() == 1
    (folder,) = tmp_path.glob("logs/*/attempt_0/0")
    assert (folder / "stderr.log.1").read_text().startswith("xxx")
    assert "RuntimeError: the reason" in agent.err
