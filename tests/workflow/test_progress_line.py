"""The workflow in a terminal of 40 columns, as `make reproduce` runs it: the line, a failure that lasts, going on."""

import json
import os
import pty
import re
import subprocess
import termios

from tests.workflow.toy import SNAKEMAKE, Toy

RUN = "nano/1x/bf16-bf16/adamw/seed1"
STEP = "    _settle(session, gradients)\n    session.optimizer.step()\n"
FAILS = STEP + '    raise ValueError("seen in the terminal")\n'
COLUMNS = 40


def command(toy: Toy) -> tuple[list[str], dict[str, str]]:
    environment = {**os.environ, "PYTHONPATH": str(toy.folder / "src"), "HOME": str(toy.folder / "home")}
    arguments = [SNAKEMAKE, "--profile", "profiles/local", "--configfile", "toy.yaml", "--cores", "2"]
    arguments += ["--logger", "mpadam", "--retries", "1"]  # as in profiles/smoke, which names a study of its own
    arguments.append(f"results/toy/runs/{RUN}/summary.json")
    for name in ("COLUMNS", "LINES"):  # the terminal's own size counts; pytest-xdist sets these
        environment.pop(name, None)
    return arguments, environment | {"OMP_NUM_THREADS": "1", "TERM": "xterm"}


def in_a_terminal(toy: Toy) -> tuple[int, str]:
    """Exit code, and all that the terminal gets."""
    arguments, environment = command(toy)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, COLUMNS))
    process = subprocess.Popen(arguments, cwd=toy.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 4096):
            written += chunk
    except OSError:  # Linux's end of file, once nobody has the terminal open
        pass
    os.close(ours)
    return process.wait(), written.decode()


def test_a_lasting_failure_in_a_terminal_and_the_same_command_afterwards(toy: Toy) -> None:
    run, log = toy.results / "runs" / RUN, f"results/toy/logs/train/{RUN}.log"
    for name in ("summary.json", "metrics.jsonl"):
        (run / name).unlink()
    toy.edit("src/mpadam/training/loop.py", STEP, FAILS)
    code, written = in_a_terminal(toy)
    assert code == 1, written
    drawn = re.findall(r"\x1b\[2K(\[\d[^\r\x1b]*)", written)
    assert drawn, written
    assert max(map(len, drawn)) <= COLUMNS
    assert any(re.fullmatch(r"\[\d:\d\d\] 0/1 jobs done; now: nano 1x bf16.*", line) for line in drawn), drawn
    assert "Select jobs to execute" not in written

    assert json.loads((run / "failure.json").read_text())["error"] == "seen in the terminal"
    assert "an earlier attempt ended so" in (toy.folder / log).read_text(), "the second attempt ended at once"
    said = [line for line in re.sub(r"\x1b\[[?\d]*[a-zA-Z]", "", written).replace("\r\n", "\n").split("\n") if line]
    failed = "train nano 1x bf16-bf16 adamw seed1"
    assert sum(line.endswith(f"{failed} failed: its command returned non-zero exit status 2.") for line in said) == 2
    assert sum(line.endswith(f"{failed} is tried once more.") for line in said) == 1
    assert any("seen in the terminal" in line for line in said)
    *_, counted, which, again, whole = said
    assert counted.endswith("0 of 1 jobs done, 1 failed:")
    assert [which, again] == [f"  {failed}: {log}", "The same command continues from here."]
    assert "Select jobs to execute" in (toy.folder / whole.removeprefix("Snakemake's log: ")).read_text()

    toy.edit("src/mpadam/training/loop.py", FAILS, STEP)
    (run / "failure.json").unlink()
    arguments, environment = command(toy)
    done = subprocess.run(arguments, cwd=toy.folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^1 of 1 jobs done in \d+:\d\d\.$", done.stderr, re.MULTILINE)
    assert (run / "summary.json").exists()
