"""What a run leaves out of a sweep, others ask: over so many runs every case, and one process asks all."""

from __future__ import annotations

from zlib import crc32

import pytest
from helpers import draws


class Item:
    """A collected test, as far as sweeps look at it."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid, self.marks = nodeid, {each.name: each.mark for each in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.mark


def asked(run: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Of five cases in three runs, two cases of three runs, one that is slow anyway, a group, and a test that is no
    sweep."""
    monkeypatch.setattr(draws, "RUN", run)
    sweep, slow = pytest.mark.in_turn(3), pytest.mark.slow
    items = [Item(f"many[{n}]", sweep) for n in range(5)]
    items += [Item("two[a]", sweep), Item("two[slow]", sweep, slow), Item("two[b]", sweep), Item("alone[x]", sweep)]
    group = pytest.mark.in_turn(2, group="three")
    items += [Item("of group a", group), Item("of group b", group), Item("of group c", group)]
    items += [Item("plain[1]"), Item("plain[2]")]
    draws.mark_left_out(items)  # type: ignore[arg-type]
    return {item.nodeid for item in items if "slow" not in item.marks}


def test_over_its_runs_a_sweep_asks_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    of_turn = {crc32(run.encode()) % 6: run for run in map(str, range(100))}
    answers = [asked(of_turn[turn], monkeypatch) for turn in range(6)]
    for turn, found in enumerate(answers):
        assert {f"many[{n}]" for n in range(5) if n % 3 == turn % 3} == {each for each in found if "many" in each}
        assert {"alone[x]", "plain[1]", "plain[2]"} < found and "two[slow]" not in found
        assert len({"two[a]", "two[b]"} & found) == 1
        assert {each for each in found if "group" in each} == (
            {"of group b"} if turn % 2 else {"of group a", "of group c"}
        )
    assert set.union(*answers) == asked("", monkeypatch)


def test_one_process_asks_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(asked("", monkeypatch)) == 5 + 2 + 1 + 3 + 2
    assert not any(case.marks for case in draws.in_turn("abcd"))  # type: ignore[attr-defined]
    monkeypatch.setattr(draws, "RUN", "any")
    assert sum(not case.marks for case in draws.in_turn("abcd")) == 2  # type: ignore[attr-defined]
