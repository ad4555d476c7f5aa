"""Crews and the store alone: workers that die, a question that kills its worker, a file that cannot be written."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

import tspsim
from tspsim.base.errors import InputError, TspsimError
from tspsim.studies import executors, worker
from tspsim.studies.executors import (
    LARGEST_CHUNK,
    MOST_DEATHS,
    Growing,
    Here,
    answers,
    chunk_size,
    executor_of,
    in_order,
)
from tspsim.studies.query import Library, Query
from tspsim.studies.store import AnswerStore
from tspsim.studies.worker import Answer

SCENARIO = tspsim.load("tsp-8x-h100")


class DeathError(Exception):
    """What a future of :class:`Mortal` raises."""


class Mortal:
    """An executor that answers only when asked to finish, and dies of some questions or at some submissions."""

    deaths = (DeathError,)
    width = 4

    def __init__(self, kills: Callable[[Sequence[str], int], bool]) -> None:
        self.kills = kills
        self.submitted: list[list[str]] = []

    def submit(self, work: object, questions: Sequence[Query]) -> Future[list[Answer]]:
        keys = [question.key for question in questions]
        self.submitted.append(keys)
        future: Future[list[Answer]] = Future()
        if self.kills(keys, len(self.submitted)):
            future.set_exception(DeathError("killed"))
        else:
            future.set_result([Answer(key, f'"{key}"', 0.1) for key in keys])
        return future

    def close(self, *, now: bool) -> None:
        raise AssertionError("answers leaves closing to its caller")


def questions(count: int) -> list[Query]:
    return [Query(f"q{number}", SCENARIO) for number in range(count)]


def keys_of(found: list[list[Answer]]) -> list[str]:
    return sorted(answer.key for chunk in found for answer in chunk)


def test_everything_is_answered_once_though_workers_die_now_and_then() -> None:
    executor = Mortal(lambda keys, submission: submission in (2, 3, 9))
    found = list(answers(questions(40), executor, worker.answer))
    assert keys_of(found) == sorted(question.key for question in questions(40))
    assert not any(answer.bug for chunk in found for answer in chunk)


def test_a_question_that_kills_its_worker_is_found_and_given_up() -> None:
    executor = Mortal(lambda keys, _: "q5" in keys)
    found = [answer for chunk in answers(questions(12), executor, worker.answer) for answer in chunk]
    assert {answer.key for answer in found if answer.bug} == {"q5"}
    assert len(found) == 12
    assert sum(keys == ["q5"] for keys in executor.submitted) >= MOST_DEATHS


def test_workers_that_never_answer_end_the_sweep() -> None:
    with pytest.raises(TspsimError, match="again and again"):
        list(answers(questions(40), Mortal(lambda keys, _: True), worker.answer))


def test_chunks_grow_with_the_speed_of_answers() -> None:
    assert chunk_size([Answer("k", "", 0.05)]) == 5
    assert chunk_size([Answer("k", "", 10.0)]) == 1
    assert chunk_size([Answer("k", "", 0.0)]) == LARGEST_CHUNK


def test_a_worker_that_sees_another_catalog_says_so() -> None:
    library = Library()
    single = SCENARIO.model_copy(update={"plans": SCENARIO.plans[:1]})
    key = library.key(library.look_up(single))
    assert worker.answer([Query(key, single)])[0].bug == ""
    with pytest.raises(worker.StrangerError, match="another catalog"):
        worker.answer([Query("0" * 64, single)])
    elsewhere = single.model_copy(update={"workload": single.workload.model_copy(update={"model": "./only-here.yaml"})})
    with pytest.raises(worker.StrangerError, match=r"only-here\.yaml"):
        worker.answer([Query(key, elsewhere)])


def test_a_bug_in_one_question_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("inside")

    library = Library()
    single = SCENARIO.model_copy(update={"plans": SCENARIO.plans[:1]})
    question = Query(library.key(library.look_up(single)), single)
    monkeypatch.setattr("tspsim.step.simulation.run_plan", broken)
    (answer,) = worker.answer([question])
    assert answer.bug == "ZeroDivisionError: inside"


def test_a_library_forgets_now_and_then() -> None:
    library = Library()
    first = library.look_up(SCENARIO)
    assert library.look_up(SCENARIO).device is first.device
    for _ in range(Library.TIDY_AFTER):
        library.tidy()
    assert library.look_up(SCENARIO).device is not first.device
    assert library.key(library.look_up(SCENARIO)) == library.key(first)


def test_few_plans_need_no_second_process() -> None:
    assert isinstance(executor_of(None, None, 2), Here)
    assert isinstance(executor_of(1, None, 1000), Here)


def test_processes_begin_once_work_has_earned_them(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    class Others(Here):
        deaths = Growing.deaths

        def __init__(self, jobs: int) -> None:
            super().__init__()
            begun.append(jobs)

    monkeypatch.setattr(executors, "Processes", Others)
    library = Library()
    single = SCENARIO.model_copy(update={"plans": SCENARIO.plans[:1]})
    question = Query(library.key(library.look_up(single)), single)
    growing = Growing(3, library)
    (answer,) = growing.submit(worker.answer, [question]).result()
    assert (answer.bug, begun, growing.width) == ("", [], 1)
    monkeypatch.setattr(executors, "EARNED_S", growing.worked_s / 2)
    assert growing.width == 6
    assert growing.submit(worker.answer, [question]).result()[0].text == answer.text
    assert begun == [3]
    growing.close(now=False)


@pytest.mark.usefixtures("apart")
def test_answers_here_find_what_was_looked_up() -> None:
    library = Library()
    single = SCENARIO.model_copy(update={"plans": SCENARIO.plans[:1]})
    asked = library.look_up(single)
    known = len(asked.cluster.memo)
    Here(library).submit(worker.answer, [Query(library.key(asked), single)])
    assert len(asked.cluster.memo) > known


# --- the store ----------------------------------------------------------------------------------------------


def test_answers_are_in_the_one_file_as_soon_as_they_are_kept(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path / "s.sqlite")
    store.add([Answer("a", "{}", 0.5), Answer("b", "[]", 0.25)])
    assert [path.name for path in tmp_path.iterdir()] == ["s.sqlite"]
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes((tmp_path / "s.sqlite").read_bytes())
    assert AnswerStore(copy, resume=True).get("b") == Answer("b", "[]", 0.25)
    store.close()


def test_an_answer_is_never_replaced(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path / "s.sqlite")
    store.add([Answer("a", "first", 1.0)])
    store.add([Answer("a", "second", 2.0)])
    assert store.get("a") == Answer("a", "first", 1.0)
    assert len(store) == 1


def test_a_store_of_nothing_yet_can_be_resumed(tmp_path: Path) -> None:
    """What kill -9 leaves between making the file and its tables."""
    path = tmp_path / "s.sqlite"
    path.touch()
    assert AnswerStore(path, resume=True).keys() == set()
    with pytest.raises(InputError, match="--resume"):
        AnswerStore(path)


@pytest.mark.in_turn(2, group="processes")
def test_processes_give_answers_in_order_and_a_death_is_told() -> None:
    assert list(in_order(1, len, ["a", "bb"])) == list(in_order(2, len, ["a", "bb"])) == [1, 2]
    with pytest.raises(TspsimError, match="a worker died"):
        list(in_order(2, os._exit, [3]))


def test_what_is_no_store_is_left_alone(tmp_path: Path) -> None:
    text, other = tmp_path / "text.sqlite", tmp_path / "other.sqlite"
    text.write_text("this is text, and long enough to be looked at as a database\n" * 20)
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE things (x)")
    connection.close()
    for path in (text, other):
        before = path.read_bytes()
        with pytest.raises(InputError, match="no store") as error:
            AnswerStore(path, resume=True)
        assert path.name in str(error.value)
        assert path.read_bytes() == before


def test_a_read_only_store_is_one_clear_message_and_keeps_what_it_has(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path / "s.sqlite")
    store.add([Answer("a", "kept", 1.0)])
    store._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(InputError, match=r"s\.sqlite.*readonly.*make the file writable.*--resume"):
        store.add([Answer("b", "lost", 1.0)])
    assert store.get("a") == Answer("a", "kept", 1.0)
    assert store.get("b") is None


def test_a_full_disk_is_one_clear_message_and_keeps_what_it_has(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path / "s.sqlite")
    store.add([Answer("a", "kept", 1.0)])
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(InputError, match=r"full.*make room.*--resume"):
        store.add([Answer(f"b{number}", "x" * 1000, 1.0) for number in range(100)])
    assert store.keys() == {"a"}
    assert store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        AnswerStore(tmp_path / "missing" / "s.sqlite")


SCRIPT = """
print("begun")
from tspsim.studies.executors import in_order
{own}
print(list(in_order(2, abs, [-1])))
"""
OWN = """
from tspsim.base.registry import Registry, by_program
Registry("planet", "tspsim.planets", object).register(type("Mars", (), {"name": "mars"})())
assert by_program()
"""


@pytest.mark.in_turn(2, group="processes")
def test_a_script_without_a_guard_is_not_run_again_by_its_workers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT.format(own=""), encoding="utf-8")
    ran = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.stdout.splitlines() == ["begun", "[1]"], ran.stderr


@pytest.mark.in_turn(2, group="processes")
def test_a_script_that_registers_its_own_is_told_of_the_guard_it_needs(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT.format(own=OWN), encoding="utf-8")
    ran = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode != 0 and 'needs `if __name__ == "__main__":`' in ran.stderr
