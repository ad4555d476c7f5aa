"""A gallery of bad input at the command line: one line on stderr, the right exit code, no file left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.processes import files_limited_to, heed_interrupts, wait_until_busy_for

import tspsim
from tspsim.cli import main

SMALL = """\
name: small
cluster: {device: mi300x, nodes: 1}
workload: {model: tsp-8b, pass: forward, sequence: 16Ki}
plans:
  - {name: TSP8, tsp: 8}
  - {name: TP8, tp: 8}
"""
SERVED = """\
traffic:
  {arrivals: {kind: closed, concurrency: 1}, prompt: {kind: fixed, of: 64}, output: {kind: fixed, of: 8}, requests: 1}
"""
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(f'*{a}' for _ in range(10))}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)
#: Where the tspsim under test lies, for processes of their own.
IMPORTED_FROM = str(Path(tspsim.__file__).parent.parent)
HEADLINE = "tsp-vs-tpsp-1024-mi300x"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own with files that are wrong in their own ways."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "small.yaml").write_text(SMALL)
    (folder / "served.yaml").write_text(SMALL.replace("pass: forward, sequence: 16Ki", "stack: vllm") + SERVED)
    (folder / "bomb.yaml").write_text(BOMB)
    (folder / "tag.yaml").write_text('name: !!python/object/apply:os.system ["touch pwned"]\n')
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00name")
    (folder / "empty.yaml").write_text("")
    (folder / "list.yaml").write_text("- a\n")
    (folder / "broken.yaml").write_text("name: [\n")
    (folder / "folder.yaml").mkdir()
    (folder / "steer.yaml").write_text(SMALL.replace("tsp-8b", '"\\e[2Jtsp"'))
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}')
    devices = folder / "topologies" / "devices"
    devices.mkdir(parents=True)
    (devices / "mygpu.yaml").write_text("name: mygpu\n")
    (folder / "pipe.yaml").symlink_to("/dev/zero")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TSPSIM_CATALOG", raising=False)
    monkeypatch.delenv("TSPSIM_TRACEBACK", raising=False)
    return folder


def one_line(text: str) -> str:
    """The message, which must be one printable line that names the program."""
    assert text.startswith("tspsim: ") and text.endswith("\n") and text.count("\n") == 1, text
    line = text.removeprefix("tspsim: ").removesuffix("\n")
    assert line.isprintable() and len(line) < 600
    return line


# (arguments, what the message says)
GALLERY: list[tuple[list[str], str]] = [
    # names
    (["rnu"], "unknown command 'rnu' (did you mean 'run'?)"),
    (["run", "tsp-vs-tpsp-1024-mi300"], f"unknown scenario 'tsp-vs-tpsp-1024-mi300' (did you mean '{HEADLINE}'?)"),
    (["run", "nowhere.yaml"], "nowhere.yaml: no such file"),
    (["bound", "tsp-8x-h10"], "did you mean 'tsp-8x-h100'?"),
    (["compare", "small.yaml", "tsp-8x-h10"], "did you mean 'tsp-8x-h100'?"),
    (["catalog", "list", "device"], "unknown kind of entry 'device' (did you mean 'devices'?)"),
    (["catalog", "show", "mi300"], "unknown catalog entry 'mi300' (did you mean 'mi300x'?)"),
    (["catalog", "show", "devices/mi300"], "unknown device 'mi300' (did you mean 'mi300x'?)"),
    (["run", "small.yaml", "--set", "cluster.device=mi300xx"], "did you mean 'mi300x'?"),
    (["run", "small.yaml", "--set", "workload.model=tsp8b"], "did you mean 'tsp-8b'?"),
    (["run", "small.yaml", "--set", "workload.modle=tsp-8b"], "unknown key (did you mean 'model'?)"),
    (["run", "small.yaml", "--set", "plans.TSP9.overlap=false"], "unknown plan 'TSP9' (did you mean 'TSP8'?)"),
    (["run", "small.yaml", "--set", "plans.TP8.algorithms.all_reduce=rnig"], "did you mean 'ring'?"),
    (
        ["run", "small.yaml", "--set", "cluster={device: mi300x, nodes: 2, fabric: rail-400g}"],
        "did you mean 'rails-400g'?",
    ),
    # what is meant, though it stands elsewhere or is called otherwise
    (["simulate", "small.yaml"], "unknown command 'simulate' (did you mean 'run'?)"),
    (["run", "small.yml"], "small.yml: no such file (did you mean 'small.yaml'?)"),
    (["run", "smal"], "unknown scenario 'smal' (did you mean 'small.yaml'?)"),
    (["run", f"{HEADLINE}.yaml"], f"no such file (did you mean '{HEADLINE}'?)"),
    (["run", "config.json"], "config.json: describes a model, not a scenario; a scenario names a model: workload: "),
    (["run", "topologies/devices/mygpu.yaml"], "describes a device, not a scenario"),
    (["run", "small.yaml", "--set", "sequence=8Ki"], "unknown key (did you mean 'workload.sequence'?)"),
    (["run", "small.yaml", "--set", "tp=8"], "--set: tp: unknown key (did you mean 'plans.NAME.tp'?)"),
    (
        ["run", "small.yaml", "--set", "cluster.device=mygpu"],
        "--set: cluster.device: no node in the catalog holds 'mygpu' GPUs; name one with cluster.node, say in its file",
    ),
    (["run", "small.yaml", "--set", "workload={}"], "--set: workload: model and pass are required"),
    # parts of a node
    (["run", "small.yaml", "--set", "cluster.gpus_per_node=9"], "9 are more than the 8 GPUs of node 'mi300x-8'"),
    (["run", "small.yaml", "--set", "cluster.gpus_per_node=0"], "'0' must be more than zero, such as '1' or '8'"),
    (
        ["run", "small.yaml", "--set", "cluster={node: torus-4x4, gpus_per_node: 4}"],
        "cluster.gpus_per_node: the GPUs of node 'torus-4x4' have unequal links to each other; use all 16",
    ),
    # quantities
    (["run", "small.yaml", "--set", "workload.sequence=64 GB"], "measures bytes; a plain count is needed here"),
    (["run", "small.yaml", "--set", "workload.runtime_reserve=2 Gib"], "workload.runtime_reserve"),
    (["run", "small.yaml", "--set", "workload.runtime_reserve=2"], "has no unit"),
    (["run", "small.yaml", "--set", "workload.sequence=-8Ki"], "must be more than zero"),
    (["run", "small.yaml", "--set", "cluster.nodes=0"], "'0' must be more than zero, such as '1' or '8'"),
    (["run", "small.yaml", "--set", "prices.gpu_hour=-1 USD/h"], "is less than zero"),
    (["bound", "small.yaml", "--claim", "lots"], "--claim: 'lots' does not begin with a number"),
    (["bound", "small.yaml", "--claim", "-5 tokens/s"], "--claim: '-5 tokens/s' must be more than zero"),
    (["bound", "small.yaml", "--claim", "0 tokens/s"], "--claim: '0 tokens/s' must be more than zero"),
    (["bound", "small.yaml", "--claim", "1e9"], "--claim: '1e9' has no unit"),
    (["bound", "small.yaml", "--claim", "5 GB/s"], "--claim: '5 GB/s' measures bytes/s; tokens/s are needed"),
    (["bound", "small.yaml", "--claim", "1e400 tokens/s"], "--claim: "),
    # degrees
    (["run", "small.yaml", "--set", "plans.TP8.tp=3"], "tp 3 = 3 GPUs a replica do not divide the cluster's 8"),
    (["run", "small.yaml", "--set", "plans.TP8.tp=16"], "tp 16 = 16 GPUs a replica do not divide the cluster's 8"),
    (
        [
            *("run", "small.yaml", "--set", "cluster={device: mi300x, nodes: 3, fabric: rails-400g}"),
            *("--set", "plans=[{name: A, tp: 24}]"),
        ],
        "plans.A.tp: 24 does not divide the 32 attention heads of tsp-8b",
    ),
    (["run", "small.yaml", "--set", "workload.sequence=1001"], "need a sequence that is a multiple of 16, not 1001"),
    (["run", "small.yaml", "--set", "plans.TP8.dp=2"], "2 replicas of 8 GPUs are 16, but the cluster has 8"),
    (["run", "small.yaml", "--set", "plans.TP8.tsp=2"], "leave tp and sp out"),
    (["run", "small.yaml", "--set", "workload.pass=decode"], "a decode step takes batch, context"),
    # schedules
    (
        ["run", "small.yaml", "--set", "plans.TSP8.weight_transport=gahter"],
        "plans.TSP8.weight_transport: 'gahter' is not allowed; use ring, multi_ring or gather (did you mean 'gather'?)",
    ),
    (["run", "small.yaml", "--set", "plans.TSP8.overlap_by=block"], "did you mean 'blocks'?"),
    (["run", "small.yaml", "--set", "plans.TSP8.tsp_schedule=publised"], "did you mean 'published'?"),
    (["run", "small.yaml", "--set", "plans.TSP8.head_group=2"], "did you mean 'head_groups'?"),
    (
        [
            *("run", "small.yaml", "--set", "plans.TSP8.weight_transport=gather"),
            *("--set", "plans.TSP8.mlp_pieces=3"),
        ],
        "plans.TSP8.mlp_pieces: 3 pieces of 8 shards do not divide the 16384 FFN columns",
    ),
    (
        ["run", "small.yaml", "--set", "plans.TSP8.head_groups=3"],
        "plans.TSP8.head_groups: 3 groups must divide the 8 ranks of tsp",
    ),
    (["run", "small.yaml", "--set", "plans.TSP8.head_groups=0"], "plans.TSP8.head_groups"),
    (
        [
            *("run", "small.yaml", "--set", "cluster={device: mi300x, nodes: 3, fabric: rails-400g}"),
            *("--set", "workload.model=gpt-3-175b", "--set", "workload.sequence=4800"),
            *("--set", "plans=[{name: A, tsp: 12, weight_transport: multi_ring}]"),
        ],
        "plans.A.weight_transport: multi_ring needs as many of the 12 ranks of tsp in every node",
    ),
    (
        [
            *("run", "small.yaml", "--set", "cluster={device: mi300x, nodes: 3, fabric: rails-400g}"),
            *("--set", "workload.model=gpt-3-175b", "--set", "workload.sequence=4800"),
            *("--set", "plans=[{name: A, sp: 12, exchange: ring, context_transport: multi_ring}]"),
        ],
        "plans.A.context_transport: multi_ring needs as many of the 12 ranks of sp in every node",
    ),
    # files that are no scenario
    (["run", "bomb.yaml"], "bomb.yaml: stands for more than"),
    (["run", "tag.yaml"], "tag.yaml: tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed"),
    (["run", "binary.yaml"], "binary.yaml: is not UTF-8 text"),
    (["run", "empty.yaml"], "empty.yaml: is empty"),
    (["run", "list.yaml"], "list.yaml: holds a list"),
    (["run", "broken.yaml"], "broken.yaml: is not valid YAML"),
    (["run", "folder.yaml"], "folder.yaml: is a folder"),
    (["run", "pipe.yaml"], "pipe.yaml: is not a regular file"),
    (["run", "steer.yaml"], "?[2Jtsp"),
    (["run", "/etc/hostname/x.yaml"], "x.yaml"),
    (["run", "x\0y"], "unknown scenario"),
    (["run", "x" * 5000], "unknown scenario"),
    # how it is asked
    (["run"], "Missing argument 'SCENARIO'; see tspsim run --help"),
    (["run", "small.yaml", "--jsn", "a"], "No such option"),
    (["run", "small.yaml", "extra"], "see tspsim run --help"),
    (["compare"], "Missing argument"),
    (["run", "small.yaml", "--set", "workload"], "is not of the form path=value"),
    (["run", "small.yaml", "--set", "=3"], "is not of the form path=value"),
    (["run", "small.yaml", "--every-step"], "--every-step: is of requests; the scenario has no `traffic`"),
    (["run", "small.yaml", "--every-kernel"], "--every-kernel: is of requests"),
    (["run", "served.yaml", "--every-rank"], "--every-rank: is of a single step"),
    (["run", "served.yaml", "--trace", "a.json"], "--trace: is of a single step"),
    (["plan", "small.yaml", "--write", "best"], "best: a scenario is written as .yaml"),
    (["plan", "served.yaml", "--set", "workload.engine={max_num_seq: 1}"], "unknown option of vllm 'max_num_seq'"),
    (["plan", "small.yaml", "--place", "TP8", "--html", "a.html"], "--place: prints the order of nodes"),
    # where it should go
    (["validate", "--rows", "small.yaml"], "small.yaml: is a file; name a folder for the rows"),
    (["run", "small.yaml", "--json", "nowhere/a.json"], "folder '"),
    (["run", "small.yaml", "--html", "."], "it is a folder; name a file in it"),
    (["run", "small.yaml", "--html", ""], "a file needs a name"),
    (["run", "small.yaml", "--json", "small.yaml/a.json"], "cannot write"),
    (["run", "small.yaml", "--json", "a", "--html", "a"], "is the place of another output too"),
    (["run", "small.yaml", "--json", "/dev/full"], "it is not a regular file"),
    (["run", "small.yaml", "--html", "/dev/null"], "it is not a regular file"),
    (["compare", "small.yaml", "--csv", "-", "--json", "-"], "is the place of another output too"),
    (["bound", "small.yaml", "--json", "nowhere/a.json"], "does not exist; make it first"),
    (["run", "small.yaml", "--json", "x" * 300], "File name too long"),
    (["run", "small.yaml", "--json", "a\0b"], "cannot write"),
]


@pytest.mark.parametrize(
    ("arguments", "says"), GALLERY, ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else ""
)
def test_bad_input_is_one_line_and_exit_two(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    before = sorted(here.rglob("*"))
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert says in one_line(printed.err)
    assert printed.out == ""
    assert sorted(here.rglob("*")) == before
    assert Path("/dev/full").is_char_device() and Path("/dev/null").is_char_device()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads and writes everything")
def test_a_file_or_folder_without_permission(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "small.yaml").chmod(0)
    assert main(["run", "small.yaml"]) == 2
    assert "cannot be read: Permission denied" in one_line(capsys.readouterr().err)
    here.chmod(0o500)
    assert main(["run", "tsp-8x-h100"]) == 2
    assert "permission denied; name a file in a folder you own" in one_line(capsys.readouterr().err)


def test_a_wrong_target_is_refused_before_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    import tspsim.step.simulation

    def never(*_: object, **__: object) -> None:
        raise AssertionError("simulated")

    monkeypatch.setattr(tspsim.step.simulation, "simulate", never)
    assert main(["run", "small.yaml", "--json", "nowhere/a.json"]) == 2
    assert main(["compare", "small.yaml", "--html", "nowhere/a.html"]) == 2
    assert main(["compare", "small.yaml", "missing.yaml"]) == 2


def test_a_link_is_followed_and_stays(here: Path) -> None:
    (here / "real").mkdir()
    (here / "a.json").symlink_to(here / "real/b.json")
    assert main(["run", "small.yaml", "--json", "a.json"]) == 0
    assert (here / "a.json").is_symlink() and (here / "real/b.json").stat().st_size > 1000


def process(*arguments: str, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": IMPORTED_FROM}
    command = [sys.executable, "-m", "tspsim", *arguments]
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment, **options}
    return subprocess.Popen(command, **settings)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("option", ["--json", "--html", "--trace"])
def test_a_disk_that_fills_up_leaves_no_partial_file(
    here: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    before = sorted(here.rglob("*"))
    with files_limited_to(4096):
        assert main(["run", "small.yaml", option, "answer"]) == 2
    assert "answer: cannot write: File too large" in one_line(capsys.readouterr().err)
    assert sorted(here.rglob("*")) == before


def test_a_full_standard_output_is_an_error_too() -> None:
    """Neither while the command prints nor when the interpreter ends is there another line."""
    with Path("/dev/full").open("w") as full:
        done = process("catalog", "list", stdout=full)
        _, message = done.communicate(timeout=120)
    assert done.returncode == 2
    assert one_line(message) == "standard output: No space left on device"


def test_an_answer_on_a_full_standard_output_is_an_error_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        assert main(["run", "small.yaml", "--json", "-"]) == 2
    assert one_line(capsys.readouterr().err) == "standard output: No space left on device"


@pytest.mark.parametrize("after_s", [pytest.param(1.3, marks=pytest.mark.slow), 2.0])
@pytest.mark.in_turn(2, group="commands")
def test_ctrl_c_is_one_line_and_leaves_no_file(here: Path, after_s: float) -> None:
    """Two moments: once the question is read, and while every rank of a large cluster is simulated. While libraries are
    imported Ctrl-C may be lost in one of theirs, or end the process by the signal itself."""
    before = sorted(here.rglob("*"))
    large = ["--set", "workload.model=llama-3.1-405b", "--set", "workload.sequence=8Ki"]
    running = process(
        "run", HEADLINE, *large, "--every-rank", "--html", "a.html", "--json", "a.json", preexec_fn=heed_interrupts
    )
    wait_until_busy_for(running, after_s)
    running.send_signal(signal.SIGINT)
    printed, message = running.communicate(timeout=60)
    assert running.returncode == 130
    assert one_line(message) == "interrupted" and printed == ""
    assert sorted(here.rglob("*")) == before


def test_a_bug_says_so_and_keeps_its_trace_for_who_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tspsim.step.simulation

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("float division\nby zero")

    monkeypatch.setattr(tspsim.step.simulation, "simulate", broken)
    assert main(["run", "small.yaml"]) == 1
    assert one_line(capsys.readouterr().err) == (
        "bug: ZeroDivisionError: float division by zero; please report; set TSPSIM_TRACEBACK=1 for the trace"
    )
    monkeypatch.setenv("TSPSIM_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(["run", "small.yaml"])


def test_ctrl_c_that_a_library_made_an_error_of_is_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tspsim.step.simulation

    def pressed(*_: object, **__: object) -> None:
        raise ValueError("Error calling function `write`: KeyboardInterrupt:") from KeyboardInterrupt()

    monkeypatch.setattr(tspsim.step.simulation, "simulate", pressed)
    assert main(["run", "small.yaml"]) == 130
    assert one_line(capsys.readouterr().err) == "interrupted"
