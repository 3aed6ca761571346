"""A prefix computed once and shared by many sessions, counted by reference."""

from __future__ import annotations

from runner.engine.backend import InvalidRequest, TokenIds
from runner.engine.slots import Slot, SlotPool


class Prefix:
    """Holds a prefix in KV while its owner or a session made from it is open.

    The holder costs one sequence id and one decode call; on a unified cache its cells are the
    same that the sessions read.
    """

    def __init__(self, slots: SlotPool, slot: Slot) -> None:
        self._slots = slots
        self._slot = slot
        self._references = 1
        self._owned = True

    @property
    def references(self) -> int:
        """The owner (until `close`) and the open sessions."""
        return self._references

    @property
    def tokens(self) -> TokenIds:
        """The prefix, shape (n_tokens,), read-only."""
        return self._slot.tokens

    @property
    def slot(self) -> Slot:
        """The slot that holds the prefix.

        Raises:
            InvalidRequest: the last reference is gone.
        """
        if not self._references:
            raise InvalidRequest("the prefix is closed")
        return self._slot

    def retain(self) -> None:
        """One more session reads the prefix."""
        self._references += bool(self.slot)

    def release(self) -> None:
        """One reader fewer; the last one frees the memory.

        Raises:
            InvalidRequest: it was released more often than it was taken.
        """
        self._references -= bool(self.slot)
        if not self._references:
            self._slots.give_back(self._slot)

    def close(self) -> None:
        """The owner's release; may be called twice."""
        if self._owned:
            self._owned = False
            self.release()
