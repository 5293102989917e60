"""The beginning of a stream, as a stream."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ocar.errors import CheckpointError
from ocar.streams.base import StreamBatch, TaskStream


class Limited:
    """A stream that ends after a number of tasks or batches, whichever comes first.

    Its last batch counts as the last batch of its task. By default there is no limit. The training
    samples of the last task are more than the stream yields where batches are limited.
    """

    def __init__(
        self, stream: TaskStream, *, max_tasks: int | None = None, max_batches: int | None = None
    ) -> None:
        self.stream = stream
        self.max_tasks = min(stream.tasks, max_tasks or stream.tasks)
        self.max_batches = max_batches
        self._position = 0
        self._begun = 0
        self._ended = False
        self.training, self.validation, self.test = stream.training, stream.validation, stream.test

    @property
    def tasks(self) -> int:
        """Number of tasks; after the limit of batches, of those that have begun."""
        return self._begun if self._ended else self.max_tasks

    def __len__(self) -> int:
        """Number of batches, as if the tasks of the whole stream had equally many."""
        whole = operator.length_hint(self.stream)
        return min(whole * self.max_tasks // self.stream.tasks, self.max_batches or whole)

    def __iter__(self) -> Iterator[StreamBatch]:
        """The remaining batches."""
        if self._ended:
            return
        for batch in self.stream:
            self._position = batch.index + 1
            self._begun = batch.task + 1
            cut = self._position == self.max_batches
            self._ended = cut or (batch.last and self._begun == self.max_tasks)
            yield replace(batch, last=True) if cut else batch
            if self._ended:
                return

    def state_dict(self) -> dict[str, int]:
        """The position of the stream."""
        own = {"begun": self._begun, "ended": int(self._ended), "at": self._position}
        return {f"limited.{k}": v for k, v in own.items()} | self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, int], /) -> None:
        """Move to the position of a stream made with the same arguments."""
        rest = dict(state)
        try:
            self._begun = rest.pop("limited.begun")
            self._ended = bool(rest.pop("limited.ended"))
            self._position = rest.pop("limited.at")
        except KeyError as error:
            raise CheckpointError(f"The state is not of a limited stream: no {error}.") from error
        self.stream.load_state_dict(rest)
