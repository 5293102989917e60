"""The service against a model of what must hold, in random order.

Clients send, send again and reuse keys; the disk is full; the process ends or is killed; a second
one starts; journal and checkpoint are damaged and the journal repaired. The model is a list of the
batches that were acknowledged, and a learner that learns them without a service.

``pytest -s -m sweep tests/service/test_service_model.py`` takes 10,000 steps.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from service_faults import batch, digest, new_learner, open_service

from ocar.errors import CheckpointError, DataError, RunError
from ocar.service import Refused, Service, repair, roll_back
from ocar.service.records import MARKS_AT, Mark, read_head, read_marks, whole_records
from ocar.state import load_state

KEYS = 12
taken: Counter[str] = Counter()
"""The steps that were taken, by name."""


class ServiceModel(RuleBasedStateMachine):
    """A service and what it must be like."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        self.places = 0
        self.folder = self.base / "0"
        self.learned: list[tuple[int, str]] = []  # batches in order, with their keys
        self.forgotten: dict[int, list[int]] = {}  # classes, by the batches learned before
        self.names = 0
        self.oracle = new_learner()
        self.service: Service | None = self.open()

    def open(self) -> Service:
        return open_service(self.folder, keys=KEYS, classes=6)

    def teardown(self) -> None:
        if self.service is not None:
            self.service.close()
            self.compare()
        shutil.rmtree(self.base)

    def compare(self) -> None:
        assert self.service is not None
        self.service.flush()
        assert self.service.failure == ""
        assert self.service.learner.batches == self.service.journal.last == len(self.learned)
        assert digest(self.service.learner) == digest(self.oracle)

    def acknowledged(self, name: int, key: str) -> None:
        self.learned.append((name, key))
        self.oracle.learn(*batch(name))

    def learn_again(self) -> None:
        self.oracle = new_learner()
        for number in range(len(self.learned) + 1):
            if number:
                self.oracle.learn(*batch(self.learned[number - 1][0]))
            for label in self.forgotten.get(number, ()):
                self.oracle.forget(label=label)

    def remembered(self) -> list[tuple[int, int, str]]:
        keyed = [(n, name, key) for n, (name, key) in enumerate(self.learned, start=1) if key]
        return keyed[-KEYS:]

    # What clients do

    @precondition(lambda self: self.service is not None)
    @rule(clients=st.lists(st.integers(0, 3), min_size=1, max_size=6), numbered=st.booleans())
    def send(self, clients: list[int], numbered: bool) -> None:
        taken["send"] += 1
        assert self.service is not None
        for client in clients:
            self.names += 1
            key = f"{client}/{self.names}" if client else ""  # the first client gives no keys
            number = len(self.learned) + 1
            given = self.service.accept(
                *batch(self.names), key=key, number=number if numbered else None
            )
            assert given == (number, False)
            self.acknowledged(self.names, key)
            self.service.flush()

    @precondition(lambda self: self.service is not None and self.remembered())
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        taken["send again"] += 1
        assert self.service is not None
        number, name, key = data.draw(st.sampled_from(self.remembered()))
        assert self.service.accept(*batch(name), key=key) == (number, True)
        with pytest.raises(Refused, match="came with another batch") as refused:
            self.service.accept(*batch(name + 1), key=key)
        assert refused.value.status == 422

    @precondition(lambda self: self.service is not None)
    @rule(ahead=st.sampled_from([-1, 0, 2, 9]))
    def send_with_a_wrong_number(self, ahead: int) -> None:
        taken["wrong number"] += 1
        assert self.service is not None
        with pytest.raises(Refused, match="The next batch is number") as refused:
            self.service.accept(*batch(1), number=len(self.learned) + ahead)
        assert refused.value.status == 409

    @precondition(lambda self: self.service is not None)
    @rule()
    def send_too_many_classes(self) -> None:
        taken["too many classes"] += 1
        assert self.service is not None
        x, y = batch(1)
        with pytest.raises(Refused, match="at most 6 are allowed") as refused:
            self.service.accept(x.repeat(3, 1, 1, 1), y.repeat(3) + 100 * (y.repeat(3).cumsum(0)))
        assert refused.value.status == 422

    # What operators do

    @rule(data=st.data(), running=st.booleans())
    def roll_back(self, data: st.DataObject, running: bool) -> None:
        taken["rollback"] += 1
        if self.service is None:
            self.start()
        assert self.service is not None
        self.service.flush()
        service = self.service
        if not running:
            self.end()
        to = data.draw(st.sampled_from(service.checkpoints()))
        if saved_batches(max(self.folder.glob(f"checkpoint-*-{to:012d}.safetensors"))) is None:
            with pytest.raises(Refused if running else CheckpointError, match="not a whole") as bad:
                service.roll_back(to) if running else roll_back(self.folder, to)
            assert not running or bad.value.status == 404
            if not running:
                self.start()
            self.compare()
            return
        if running:
            with pytest.raises(Refused, match=f"no checkpoint after {to + 99} batches") as refused:
                service.roll_back(to + 99)
            assert refused.value.status == 404
            service.roll_back(to)
        else:
            roll_back(self.folder, to)
        keys = {key for _, _, key in self.remembered()}
        self.learned = [(name, key if key in keys else "") for name, key in self.learned[:to]]
        self.learn_again()
        if not running:
            self.start()
        self.compare()
        assert max(self.service.checkpoints()) == to

    @precondition(lambda self: self.service is not None)
    @rule(label=st.integers(0, 4))
    def forget(self, label: int) -> None:
        taken["forget"] += 1
        assert self.service is not None
        held = self.oracle.forget(label=label)
        assert self.service.forget(label=label) == held
        self.forgotten.setdefault(len(self.learned), []).append(label)
        self.compare()
        assert self.service.checkpoints() == [len(self.learned)]
        (journal,) = self.folder.glob("journal-*")
        assert not list(whole_records(journal.read_bytes()))

    # What disks do

    @precondition(lambda self: self.service is not None)
    @rule(name=st.sampled_from(["write", "fsync"]), at=st.integers(0, 1))
    def send_to_a_full_disk(self, name: str, at: int) -> None:
        taken["full disk"] += 1
        assert self.service is not None
        self.names += 1
        calls, function = [0], getattr(os, name)

        def failing(handle: int, *rest: Any) -> Any:
            calls[0] += 1
            if calls[0] == at + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(handle, *rest)

        with mock.patch.object(os, name, failing), pytest.raises(Refused, match="is not kept"):
            self.service.accept(*batch(self.names), key=f"full/{self.names}")

    # What happens to processes

    @rule()
    def a_second_start(self) -> None:
        taken["second start"] += 1
        if self.service is None:
            self.start()
        for _ in range(2):
            with pytest.raises(RunError, match=rf"in use by process {os.getpid()} on "):
                self.open()
        with pytest.raises(RunError, match="in use"):
            repair(self.folder)

    @precondition(lambda self: self.service is not None)
    @rule()
    def end(self) -> None:
        taken["end"] += 1
        assert self.service is not None
        self.service.close()
        self.service = None

    @precondition(lambda self: self.service is not None)
    @rule()
    def kill(self) -> None:
        """What a kill leaves is what the folder holds now."""
        taken["kill"] += 1
        assert self.service is not None
        self.places += 1
        there = self.base / str(self.places)
        shutil.copytree(self.folder, there)
        self.service.close()
        shutil.rmtree(self.folder)
        self.service, self.folder = None, there

    @precondition(lambda self: self.service is None)
    @rule()
    def start(self) -> None:
        taken["start"] += 1
        self.service = self.open()
        self.compare()

    # What happens to files

    def journal(self) -> Path:
        return max(self.folder.glob("journal-*"))

    def checkpoints(self) -> list[Path]:
        """Those of this generation, newest first."""
        generation = self.journal().name[8:11]
        return sorted(self.folder.glob(f"checkpoint-{generation}-*"), reverse=True)

    @precondition(lambda self: self.service is None)
    @rule(tail=st.binary(max_size=300), zeros=st.integers(0, 5000))
    def an_end_that_was_never_acknowledged(self, tail: bytes, zeros: int) -> None:
        taken["torn end"] += 1
        path = self.journal()
        path.write_bytes(path.read_bytes() + tail + bytes(zeros))

    @precondition(lambda self: self.service is None)
    @rule(data=st.data(), how=st.sampled_from(["flip", "zeros", "cut"]))
    def damage_the_journal(self, data: st.DataObject, how: str) -> None:
        taken["damaged journal"] += 1
        path = self.journal()
        whole = path.read_bytes()
        head, marks = read_head(whole), [mark for mark in read_marks(whole) if mark]
        assert head is not None
        (first, _, start), mark = head, max(marks)
        heads = [*range(24), *(at + n for at in MARKS_AT for n in range(20))]
        at = data.draw(st.sampled_from(heads) | st.integers(1536, mark.end - 1))
        spoiled, since, until = {
            "flip": (whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :], at, at + 1),
            "zeros": (whole[: max(0, mark.end - 4096)] + bytes(4096), mark.end - 4096, mark.end),
            "cut": (whole[:at], at, mark.end),
        }[how]
        path.write_bytes(spoiled)
        spans = itertools.pairwise([start, *(r.end for r in whole_records(whole[: mark.end]))])
        hit = [n for n, (begin, end) in enumerate(spans, first) if since < end and until > begin]
        if how == "flip" and len(set(marks)) == 2 and whole_marks(spoiled) == {min(marks)}:
            self.start()  # the last batch is whole: the other mark is enough
            return
        with pytest.raises(DataError, match=f"ocar.service repair {self.folder}"):
            self.open()
        # The newest checkpoint may be damaged; then the one before it is used.
        held = next(n for n in map(saved_batches, self.checkpoints()) if n is not None)
        lost = [n for n in hit if n > held]
        kept, said = repair(self.folder)
        if not whole_marks(spoiled):  # nobody knows of batches that are gone from the end
            assert set(said) <= set(lost)
        else:
            assert said == lost
        if read_head(spoiled) is None:
            self.learned = [(name, "") for name, _ in self.learned]  # keys are lost with the head
        self.learned = [b for n, b in enumerate(self.learned, start=1) if n not in lost]
        assert kept == len(self.learned) - held
        self.learn_again()
        self.start()

    @precondition(lambda self: self.service is None)
    @rule(data=st.data())
    def damage_the_checkpoint(self, data: st.DataObject) -> None:
        path, *others = self.checkpoints()
        before = saved_batches(others[0]) if others else None
        newest = self.journal().name[:11]
        reaches = min(int(p.name[12:]) for p in self.folder.glob(f"{newest}*")) - 1
        if before is None or before < reaches:
            return  # one fault at a time
        taken["damaged checkpoint"] += 1
        whole = path.read_bytes()
        at = data.draw(st.integers(0, len(whole) - 1))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        self.start()


def whole_marks(data: bytes) -> set[Mark]:
    return {mark for mark in read_marks(data) if mark}


def saved_batches(path: Path) -> int | None:
    """Batches in a checkpoint; None if it is damaged."""
    try:
        return int(load_state(path)[1]["batches"])
    except CheckpointError:
        return None


def explore(steps: int, examples: int) -> None:
    taken.clear()
    run_state_machine_as_test(
        ServiceModel,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"{sum(taken.values())} steps: {dict(taken)}")


def test_a_hundred_steps() -> None:
    explore(30, 6)
    assert sum(taken.values()) >= 60


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_ten_thousand_steps() -> None:
    explore(60, 250)
    assert sum(taken.values()) >= 10_000
    assert len(taken) == 14  # every rule was used
