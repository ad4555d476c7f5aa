"""Who may talk to the studio, what its processes may touch, and how they end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from helpers.studio import FLEET, QUESTION

from tspsim.api import locate_entry
from tspsim.base.errors import InputError
from tspsim.cli import main
from tspsim.studio.desks import Desks, TabProcesses
from tspsim.studio.guard import LOOPBACK, Guard


def asked(**more: str) -> dict[str, Any]:
    return {"REQUEST_METHOD": "POST", "HTTP_HOST": "127.0.0.1:8787", "HTTP_ORIGIN": "http://127.0.0.1:8787", **more}


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (asked(), None),
        (asked(HTTP_HOST="localhost:8787", HTTP_ORIGIN="http://localhost:8787"), None),
        (asked(HTTP_HOST="evil.example:8787"), 403),
        (asked(HTTP_HOST="127.0.0.1:8787.evil.example"), 403),
        (asked(HTTP_HOST="127.0.0.1"), 403),
        (asked(HTTP_HOST=""), 403),
        (asked(HTTP_ORIGIN="http://evil.example"), 403),
        (asked(HTTP_ORIGIN="null"), 403),
        (asked(HTTP_ORIGIN="http://127.0.0.1:9999"), 403),
        (asked(HTTP_ORIGIN="https://127.0.0.1:8787"), 403),
        (asked(HTTP_SEC_FETCH_SITE="cross-site"), 403),
        (asked(HTTP_SEC_FETCH_SITE="same-site"), 403),
        ({"REQUEST_METHOD": "POST", "HTTP_HOST": "127.0.0.1:8787"}, 403),
        ({"REQUEST_METHOD": "GET", "HTTP_HOST": "127.0.0.1:8787", "HTTP_SEC_FETCH_SITE": "cross-site"}, 403),
        (
            {
                "REQUEST_METHOD": "GET",
                "HTTP_HOST": "127.0.0.1:8787",
                "HTTP_SEC_FETCH_SITE": "cross-site",
                "HTTP_SEC_FETCH_DEST": "document",
            },
            None,
        ),
        (asked(CONTENT_LENGTH=str(2**30)), 413),
        (asked(CONTENT_LENGTH="x"), 400),
        (asked(HTTP_TRANSFER_ENCODING="chunked"), 413),
    ],
)
def test_only_pages_of_the_studio_itself_are_answered(request_: dict[str, Any], status: int | None) -> None:
    problem = Guard(lambda *_: [], LOOPBACK, 8787).problem(request_)
    assert (problem and problem[0]) == status


def test_a_token_is_asked_once_and_then_a_cookie() -> None:
    said: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]]) -> None:
        said.append((status, dict(headers)))

    guard = Guard(lambda _, start: [start("200 OK", []) or b"in"], ("h",), 1, "secret")
    page = {"REQUEST_METHOD": "GET", "HTTP_HOST": "h:1"}
    assert guard(page, start) != [b"in"] and said[-1][0].startswith("403")
    assert guard({**page, "QUERY_STRING": "token=wrong"}, start) != [b"in"]
    guard({**page, "QUERY_STRING": "token=secret"}, start)
    status, headers = said[-1]
    assert (
        status.startswith("303") and headers["Location"] == "/" and "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
    )
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert guard({**page, "HTTP_COOKIE": cookie}, start) == [b"in"]
    assert "frame-ancestors 'none'" in said[-1][1]["Content-Security-Policy"]
    assert guard({**page, "HTTP_COOKIE": cookie.replace("secret", "other")}, start) != [b"in"]


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.yaml").write_text("name: secret\n", encoding="utf-8")
    here = tmp_path_factory.mktemp("folder")
    (here / "link.yaml").symlink_to(outside / "secret.yaml")
    (here / "away").symlink_to(outside)
    (here / "big.json").write_bytes(b"{" + b" " * 100 * 2**20)
    return here


@pytest.fixture(scope="module")
def desk(folder: Path) -> Iterator[TabProcesses]:
    desks = Desks(folder)
    yield desks.of("tab")
    desks.close()


def refusal(desk: TabProcesses, name: str, *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        desk.done("front", name, *arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    "model",
    [
        "/etc/passwd",
        "link.yaml",
        "../outside0/secret.yaml",
        "/proc/self/../../etc/hosts.json",
        "/proc/self/environ",
        "/proc/1/cmdline",
    ],
)
def test_no_path_leads_out_of_the_folder(desk: TabProcesses, model: str) -> None:
    told = refusal(desk, "answer", QUESTION.replace("llama-3.1-8b", model), "q.yaml")
    assert "lies outside the folder" in told or "no such file" in told


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("../x.yaml", "outside"),
        ("/tmp/x.yaml", "outside"),
        ("away/x.yaml", "outside"),
        ("link.yaml", "outside"),
        ("x.sh", "end it with"),
        ("", "end it with"),
    ],
)
def test_nothing_is_written_out_of_the_folder(desk: TabProcesses, folder: Path, file: str, why: str) -> None:
    assert why in refusal(desk, "save", file, "x: 1\n", True, (".yaml",))
    assert sorted(path.name for path in (folder / "away").iterdir()) == ["secret.yaml"]


def test_a_file_is_replaced_only_where_somebody_says_so(desk: TabProcesses, folder: Path) -> None:
    first = desk.done("front", "save", "a/b.yaml", "x: 1\n", False, (".yaml",))
    again = desk.done("front", "save", "a/b.yaml", "x: 2\n", False, (".yaml",))
    assert (first, again) == ({"saved": "a/b.yaml"}, {"exists": "a/b.yaml"})
    assert (folder / "a/b.yaml").read_text(encoding="utf-8") == "x: 1\n"


BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        QUESTION.replace("4Ki", "1e400"),
        QUESTION.replace("4Ki", "9" * 400),
        QUESTION.replace("llama-3.1-8b", "big.json"),
        QUESTION.replace("tp: 8", "tp: 3"),
        QUESTION.replace("h100", "h1000"),
        FLEET.replace("nodes: 2", "nodes: 9"),
        FLEET.replace("llama-3.1-8b", "lama-3.1-8b"),
        "[" * 3000,
        "",
        "name: !!python/object:os.system x",
    ],
    ids=[
        "bomb",
        "infinite",
        "huge",
        "100 MB",
        "degree",
        "unknown",
        "crowded",
        "unknown in a job",
        "deep",
        "empty",
        "tag",
    ],
)
def test_what_is_wrong_is_told_in_the_command_s_own_line(
    desk: TabProcesses, folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refusal(desk, "answer", text, "wrong.yaml")
    monkeypatch.chdir(folder)
    Path("wrong.yaml").write_text(text, encoding="utf-8")
    assert main(["run", "wrong.yaml"]) == 2
    assert capsys.readouterr().err == f"tspsim: {told}\n"


@pytest.mark.parametrize(
    ("text", "entries"),
    [(QUESTION, ["llama-3.1-8b", "ideal", "h100"]), (FLEET, ["h100", "rails-400g", "llama-3.1-8b"])],
    ids=["scenario", "fleet"],
)
def test_the_answer_is_the_command_s_to_the_byte(
    desk: TabProcesses, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, entries: list[str]
) -> None:
    value = desk.done("front", "answer", text, "right.yaml")
    monkeypatch.chdir(folder)
    Path("right.yaml").write_text(text, encoding="utf-8")
    assert main(["run", "right.yaml", "--json", "right.json"]) == 0
    assert Path("right.json").read_text(encoding="utf-8") == value["json"]
    assert [name for _, name, _ in value["entries"]] == entries


def test_entries_are_listed_with_what_they_are(desk: TabProcesses, folder: Path) -> None:
    listed = desk.done("list", "described")
    assert "79.6 GiB of memory to use at 3.35 TB/s" in dict(listed["devices"])["h100"]
    assert "weights 15.0 GiB, caches 131,072 bytes a token" in dict(listed["models"])["llama-3.1-8b"]
    assert all(what for kind in listed.values() for _, what in kind)
    device = locate_entry("devices", "h100").read_text(encoding="utf-8")
    (folder / "mine.yaml").write_text(device.replace("name: h100", "name: mine", 1), encoding="utf-8")
    (folder / "other.yaml").write_bytes(b"\xff\xfe\x00")
    own = desk.done("list", "folder")
    assert "79.6 GiB of memory" in dict(own["devices"])["mine.yaml"]
    assert not any("link" in file or "other" in file for kind in own.values() for file, _ in kind)


def test_a_fleet_is_searched_for_its_jobs_plans_alone(desk: TabProcesses) -> None:
    assert "jobs: asks for a fleet" in refusal(desk, "plans", FLEET, "q.yaml", "1 s", [])


def test_what_is_asked_anew_replaces_what_was_asked(desk: TabProcesses) -> None:
    first = desk.ask("front", "rest", 600.0)
    time.sleep(0.05)
    process = desk.lanes["front"].process
    second = desk.ask("front", "answer", QUESTION, "q.yaml")
    assert second.wait(60.0) and second.value is not None and not second.line
    assert first.over and first.cancelled
    process.join(5.0)
    assert not process.is_alive()


def test_an_answer_that_was_begun_is_that_of_the_question(folder: Path) -> None:
    desks = Desks(folder)
    desk = desks.of("tab")
    other = QUESTION.replace("4Ki", "8Ki")
    desk.begin(QUESTION, "q.yaml")
    begun = desk.lanes["front"].job
    assert desk.answer(1, QUESTION, "q.yaml") is begun and desk.number == 1
    assert begun is not None and begun.wait(60.0) and begun.value["best"] == "TP8"
    desk.begin(other, "q.yaml")  # somebody typed, and took it back
    assert desk.answer(1, QUESTION, "q.yaml") is begun and desk.number == 1
    again = desk.answer(1, QUESTION, "q.yaml", again=True)
    assert again is not begun and again is not None and again.wait(60.0) and again.value == begun.value
    third = desk.ask("front", "rest", 600.0)
    desk.answering = third
    desk.begin(other, "q.yaml")  # nothing is ended for it
    assert not third.over
    desks.close()


def test_a_process_that_is_killed_says_so_and_the_next_one_answers(desk: TabProcesses) -> None:
    job = desk.ask("front", "rest", 600.0)
    time.sleep(0.05)
    os.kill(desk.lanes["front"].pid or 0, 9)
    assert job.wait(20.0) and "ended from outside (signal 9)" in job.line
    assert desk.done("front", "answer", QUESTION, "q.yaml")["best"] == "TP8"


def test_a_tab_that_is_closed_leaves_no_process(folder: Path) -> None:
    desks = Desks(folder)
    desks.of("tab").ask("front", "rest", 600.0)
    desks.of("other").ask("back", "rest", 600.0)
    processes = [worker.process for tab in ("tab", "other") for worker in desks.of(tab).lanes.values()]
    assert set(desks.processes()) == {"tab", "other"} and all(each.is_alive() for each in processes)
    desks.leave("tab")
    processes[0].join(5.0)
    assert not processes[0].is_alive() and processes[1].is_alive()
    desks.close()
    processes[1].join(5.0)
    assert not processes[1].is_alive() and not desks.processes()


# --- the server -------------------------------------------------------------------------------------------------------


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dash", None)
    assert main(["studio", "--no-open"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "pip install 'tspsim[studio]'" in told


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["no-such-scenario"], "unknown scenario"), (["--port", "70000"], "65535"), (["nothing.yaml"], "no such file")],
)
def test_a_wrong_start_is_refused_in_one_line(
    arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["studio", "--no-open", *arguments]) == 2
    told = capsys.readouterr().err
    assert why in told and told.count("\n") == 1


def test_a_page_that_opens_beside_others_has_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tabs of a server before this one ask while the first page is made."""
    dash = pytest.importorskip("dash", reason="dash is not installed (extra 'studio')")
    from tspsim.studio.server import opened

    walk = dash.Dash._walk_assets_directory
    monkeypatch.setattr(dash.Dash, "_walk_assets_directory", lambda app: time.sleep(0.4) or walk(app))
    studio = opened(tmp_path, port=0)
    running = threading.Thread(target=studio.run, daemon=True)
    running.start()
    address = studio.address.removeprefix("http://").rstrip("/")

    def asked(path: str) -> bytes:
        connection = HTTPConnection(address, timeout=20)
        connection.request("GET", path)
        return connection.getresponse().read()

    first = threading.Thread(target=asked, args=("/",))
    first.start()
    time.sleep(0.1)
    assert b"studio.js" in asked("/")
    first.join()
    studio.stop()
    running.join(10.0)


def test_the_server_refuses_strangers_and_frames(tmp_path: Path) -> None:
    pytest.importorskip("dash", reason="dash is not installed (extra 'studio')")
    from tspsim.studio.server import opened

    studio = opened(tmp_path, port=0)
    running = threading.Thread(target=studio.run, daemon=True)
    running.start()
    port = int(studio.address.rstrip("/").rpartition(":")[2])

    def status(method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()

    code, headers, page = status("GET", "/")
    assert code == 200 and b"tspsim studio" in page and b"https://" not in page
    assert "script-src 'self'" in headers["Content-Security-Policy"] and headers["X-Frame-Options"] == "DENY"
    assert status("GET", "/", Host="evil.example")[0] == 403
    assert status("GET", "/", Host=f"evil.example:{port}")[0] == 403
    update = "/_dash-update-component"
    assert status("POST", update, b"{}", Origin="http://evil.example")[0] == 403
    assert status("POST", update, b"{}")[0] == 403
    own = {"Origin": f"http://127.0.0.1:{port}", "Content_Type": "application/json"}
    assert status("POST", "/leave/x", **own)[0] == 204
    assert status("POST", "/begin/x", b'{"text": "", "file": ""}', Content_Type="application/json")[0] == 403
    for body in (b"", b"[]", b"{", b'{"text": 1, "file": ""}'):
        assert status("POST", "/begin/x", body, **own)[0] == 400
    for said in ('"values": {"a": 1}', '"values": {"workload/sequence": "8Ki"}'):
        assert status("POST", "/begin/x", f'{{"text": "[", "file": "q.yaml", {said}}}'.encode(), **own)[0] == 204
    assert not studio.desks.processes()
    for path in (
        "/assets/../../../../etc/passwd",
        "/assets/%2e%2e/%2e%2e/app.py",
        "/_dash-component-suites/dash/../../x",
    ):
        assert status("GET", path)[0] in (400, 404, 500)
    studio.stop()
    running.join(10.0)
    assert not running.is_alive()
