"""Which memories of a scope point to which others, and when did they? Its links, as columns, in commit order.

A link is a row that is appended once: from a memory, by a relation, to a memory, with attributes, and the times from
and up to which it holds. What happens to it later is marked with the seq of its commit, as with memories, so that a
reader's view never changes: that it was ended, and that one of its ends was forgotten. One that was ended as of a time
still to come can be ended again, earlier. A link is seen only while both its ends are here: to take back the commit
that forgot an end brings it back. It is not that of another memory which has got the id of an end since.

The columns are changed under the catalog's lock; a view of the first rows may be taken and kept without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.store.segment import Columns

NEVER = int(np.iinfo(np.int64).min)  # a time that is not given: valid from ever, or for ever
SUMMARIZES = "summarizes"  # from a summary to what it was made of

FIXED: dict[str, npt.DTypeLike] = {
    "seq": np.int64,
    "src_hi": np.uint64,
    "src_lo": np.uint64,
    "relation": np.int32,  # a code of the catalog's names
    "dst_hi": np.uint64,
    "dst_lo": np.uint64,
    "created_at": np.int64,
    "valid_from": np.int64,
    "valid_to": np.int64,
    "ended_seq": np.int64,  # 0: never ended; else the seq of the commit that ended it
    "ended_at": np.int64,  # up to when it holds then, which `valid_to` gives way to
    "forgotten_seq": np.int64,  # 0: both its ends are here; else the commit that must be taken back for it to be seen
}
MARKS = ("ended_seq", "ended_at", "forgotten_seq")
I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]
Name = tuple[int, int]  # an id in two halves


class View(NamedTuple):
    """The first `n` links, with marks that may be later than the view. `attributes` may run on behind them."""

    n: int
    columns: Columns
    attributes: Sequence[str | None]

    def seen(self, seq: int) -> BOOL:
        """Which are here as of a commit: not forgotten."""
        return _later(self.columns["forgotten_seq"], seq)

    def valid_to(self, seq: int) -> I64:
        """Up to when each holds, as of a commit; `NEVER` for ever."""
        c = self.columns
        given: I64 = c["valid_to"]
        ended: I64 = c["ended_at"]
        return np.where(_later(c["ended_seq"], seq), given, ended)

    def valid(self, seq: int, moment: int) -> BOOL:
        """Which are here as of a commit and hold at a moment."""
        until = self.valid_to(seq)
        holds: BOOL = (self.columns["valid_from"] <= moment) & ((until == NEVER) | (until > moment))
        return holds & self.seen(seq)

    def ends(self, moment: int) -> I64:
        """Up to when each holds if it is ended at a moment: not before it was made or begins, so that one still to come
        holds never.
        """
        c = self.columns
        latest: I64 = np.maximum(np.maximum(c["created_at"], c["valid_from"]), moment)
        return latest

    def lasting(self, seq: int, moment: int) -> BOOL:
        """Which are here as of a commit and could be ended at a moment: they hold then, or will later."""
        until = self.valid_to(seq)
        later: BOOL = (until == NEVER) | (until > self.ends(moment))
        return later & self.seen(seq)

    def between(self, src: Name | None, relation: int | None, dst: Name | None) -> BOOL:
        """Which lead from a memory by a relation, a code, to a memory; None for any."""
        found = np.ones(self.n, dtype=np.bool_)
        for end, name in (("src", src), ("dst", dst)):
            if name is not None:
                found &= self.at(end, {name})
        if relation is not None:
            found &= self.columns["relation"] == relation
        return found

    def again(self, seq: int, moment: int, since: int, until: int) -> BOOL:
        """Which may be what is told once more at a moment, from `since` up to `until`, `NEVER` where that is not given:
        no later word has ended them, and they begin and end as it is told. Where no beginning is told they hold at the
        moment, and where no end is they do or will.
        """
        c = self.columns
        same = self.seen(seq) & _later(c["ended_seq"], seq)
        if until != NEVER:
            same &= c["valid_to"] == until
        elif since != NEVER:
            same &= (c["valid_to"] == NEVER) | (c["valid_to"] > moment)
        return same & (self.valid(seq, moment) if since == NEVER else c["valid_from"] == since)

    def cut(self, seq: int, begins: int, until: int) -> BOOL:
        """Which give way to one that holds from `begins` on, up to `until`: at some moment both would hold."""
        found = self.lasting(seq, begins)
        if until != NEVER:
            found &= (begins < until) & (self.columns["valid_from"] < until)
        return found

    def at(self, end: str, names: Iterable[Name]) -> BOOL:
        """Which have one of these memories at an end, "src" or "dst"."""
        hi, lo = self.columns[f"{end}_hi"], self.columns[f"{end}_lo"]
        wanted = set(names)
        if len(wanted) == 1:
            ((high, low),) = wanted
            same: BOOL = (lo == np.uint64(low)) & (hi == np.uint64(high))
            return same
        found: BOOL = np.isin(lo, np.fromiter((low for _, low in wanted), np.uint64, len(wanted)))
        rows = np.flatnonzero(found)
        found[rows] = [name in wanted for name in zip(hi[rows].tolist(), lo[rows].tolist(), strict=True)]
        return found

    def names(self, end: str, rows: I64) -> list[Name]:
        """The ids at an end of some links."""
        return list(zip(*(self.columns[f"{end}_{half}"][rows].tolist() for half in ("hi", "lo")), strict=True))


class Identity(NamedTuple):
    """What two links of a scope have in common if they are the same one, told at other times: all but their end."""

    src: Name
    relation: str
    dst: Name
    attributes: str | None
    created_at: int
    valid_from: int


class Linked(NamedTuple):
    """A link as a file tells it: its scope, its ends, and the other columns by their names."""

    scope: tuple[str, str]
    src: Name
    relation: str
    dst: Name
    attributes: str | None
    created_at: int
    valid_from: int
    valid_to: int
    place: int  # of its row in the file
    nth: int = 1  # of those of its row that are the same but for their end

    @property
    def identity(self) -> Identity:
        return Identity(*self[1:7])


def _later(marked: I64, seq: int) -> BOOL:
    """Where a mark is not set, or was set after a commit."""
    later: BOOL = (marked == 0) | (marked > seq)
    return later


_EMPTY: Columns = {name: np.empty(0, dtype=dtype) for name, dtype in FIXED.items()}
NO_LINKS = View(0, _EMPTY, ())


class Mark(NamedTuple):
    """A change of one of the `MARKS`, and what was there before."""

    row: int
    name: str
    before: int


class LinkTable:
    """The writer's side. Every change can be taken back until it is shown."""

    __slots__ = ("_arrays", "_attributes", "_viewed", "marks", "n", "shown")

    def __init__(self) -> None:
        self.n = 0
        self.shown = 0  # rows that were there when it was last shown
        self.marks: list[Mark] = []  # since then
        self._arrays = _EMPTY
        self._attributes: list[str | None] = []
        self._viewed = self._arrays, NO_LINKS  # the last view, and the arrays that it is of

    @property
    def dirty(self) -> bool:
        """Whether something was done since it was last shown."""
        return self.n > self.shown or bool(self.marks)

    def changed(self) -> list[int]:
        """The rows that were added or marked since it was last shown."""
        return sorted({*range(self.shown, self.n), *(mark.row for mark in self.marks)})

    def view(self) -> View:
        made_of, view = self._viewed
        if made_of is not self._arrays or view.n != self.n:
            view = View(self.n, {name: array[: self.n] for name, array in self._arrays.items()}, self._attributes)
            self._viewed = self._arrays, view
        return view

    def append(self, columns: Columns, attributes: Sequence[str | None]) -> None:
        """Appends links with rising seqs; the marks that `columns` lacks are 0."""
        begin, end = self.n, self.n + len(attributes)
        if end > len(self._arrays["seq"]):
            room = max(16, 2 * begin, end)
            self._arrays = {
                name: np.concatenate([array[:begin], np.zeros(room - begin, dtype=array.dtype)])
                for name, array in self._arrays.items()
            }
        for name, array in self._arrays.items():
            array[begin:end] = columns.get(name, 0)
        self._attributes[begin:] = attributes  # over what an append that was interrupted has left there
        self.n = end  # the last step: an exception before it leaves the table as it was

    def put(self, row: int, name: str, value: int) -> None:
        """Sets one of the `MARKS`."""
        self.marks.append(Mark(row, name, int(self._arrays[name][row])))
        self._arrays[name][row] = value

    def end(self, ends: Mapping[int, int], seq: int) -> None:
        """Ends links by the commit `seq`: up to when each row holds."""
        self._part(list(ends))
        for row, at in ends.items():
            self.put(row, "ended_at", at)
            self.put(row, "ended_seq", seq)

    def _part(self, rows: Sequence[int] | I64) -> None:
        """Before some rows are ended: views that are out keep the ends that they know, which will be written over."""
        if self._arrays["ended_seq"][rows].any():
            parted = {name: self._arrays[name].copy() for name in ("ended_seq", "ended_at")}
            self._arrays = {**self._arrays, **parted}

    def forget(self, names: set[Name], seq: int, *, again: bool) -> None:
        """Marks the links of these memories as not to be seen; `again` those too that an earlier commit has marked."""
        view = self.view()
        touched = view.at("src", names) | view.at("dst", names)
        for row in np.flatnonzero(touched & (again | (view.columns["forgotten_seq"] == 0))).tolist():
            self.put(row, "forgotten_seq", seq)

    def hidden(self, commits: Mapping[Name, int]) -> list[tuple[int, int, Name, Name]]:
        """The links of these memories that the commit of each has hidden: row, seq, and both ends."""
        view = self.view()
        marked = np.isin(view.columns["forgotten_seq"], np.fromiter(commits.values(), np.int64, len(commits)))
        rows = np.flatnonzero((view.at("src", commits) | view.at("dst", commits)) & marked)
        cells = (view.columns[name][rows].tolist() for name in ("seq", "forgotten_seq"))
        ends = (view.names(end, rows) for end in ("src", "dst"))
        return [
            (row, seq, src, dst)
            for row, seq, commit, src, dst in zip(rows.tolist(), *cells, *ends, strict=True)
            if commit in (commits.get(src), commits.get(dst))
        ]

    def take_in(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Rows of the journal, in the order of their seqs, as (seq, src, relation, dst, attributes, times and marks …):
        those that are here get their marks, and the others are appended. Shown at once.
        """
        if not rows:
            return
        seqs, sources, relations, targets, attributes, *cells = (list(column) for column in zip(*rows, strict=True))
        columns: Columns = {"seq": np.array(seqs, np.int64), "relation": np.array(relations, np.int32)}
        for end, blobs in (("src", sources), ("dst", targets)):
            halves = np.frombuffer(b"".join(blobs), dtype=">u8").astype(np.uint64).reshape(len(rows), 2)
            columns[f"{end}_hi"], columns[f"{end}_lo"] = halves[:, 0], halves[:, 1]
        for name, values in zip(("created_at", "valid_from", "valid_to", *MARKS), cells, strict=True):
            columns[name] = np.array([NEVER if value is None else value for value in values], np.int64)
        last = self._arrays["seq"][self.n - 1] if self.n else 0
        known = int(np.searchsorted(columns["seq"], last, side="right"))
        at = np.searchsorted(self._arrays["seq"][: self.n], columns["seq"][:known])
        self._part(at[self._arrays["ended_seq"][at] != columns["ended_seq"][:known]])
        for name in MARKS:
            self._arrays[name][at] = columns[name][:known]
        self.append({name: values[known:] for name, values in columns.items()}, attributes[known:])
        self.show()

    def cells(self, row: int) -> tuple[Any, ...]:
        """A row for the journal, as `take_in` takes it."""
        c = {name: int(array[row]) for name, array in self._arrays.items()}
        ends = (b"".join(c[f"{end}_{half}"].to_bytes(8, "big") for half in ("hi", "lo")) for end in ("src", "dst"))
        times = (None if c[name] == NEVER else c[name] for name in ("valid_from", "valid_to"))
        source, target = ends
        marks = (c[name] for name in MARKS)
        return c["seq"], source, c["relation"], target, self._attributes[row], c["created_at"], *times, *marks

    def show(self) -> None:
        """What was done is no longer to be taken back."""
        self.shown, self.marks = self.n, []

    def save(self) -> tuple[int, int]:
        return self.n, len(self.marks)

    def take_back(self, save: tuple[int, int]) -> None:
        """All as it was at the save. Rows behind it are written over by the next ones: no reader has them."""
        n, marks = save
        for mark in reversed(self.marks[marks:]):
            self._arrays[mark.name][mark.row] = mark.before
        del self.marks[marks:]
        self.n = min(n, self.n)  # fewer, if it was read from disk anew since then, and some were gone

    def sweep(self, commits: set[int]) -> int:
        """Drops the links that these commits have forgotten; how many. Shown at once, in new arrays: readers keep the
        old ones.
        """
        gone = np.isin(self._arrays["forgotten_seq"][: self.n], np.fromiter(commits, np.int64, len(commits)))
        kept = np.flatnonzero(~gone)
        dropped = self.n - len(kept)
        if dropped:
            self._arrays = {name: array[kept] for name, array in self._arrays.items()}
            self._attributes = [self._attributes[row] for row in kept.tolist()]
            self.n = len(kept)
            self.show()
        return dropped

    def nbytes(self) -> int:
        texts = sum(len(text) for text in self._attributes if text is not None)
        return sum(int(array.nbytes) for array in self._arrays.values()) + texts + 8 * len(self._attributes)
