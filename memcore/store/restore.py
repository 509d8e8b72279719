"""How do rows that an export kept whole come into a store? With their ids, versions, times and counters as they were.

What is here already stays: a memory whose id is here is left alone, and a key that another memory uses goes to the one
that was ingested later (to the one that is here, if at the same time); the other becomes history.

They come in batches, a commit each, in the order of their seqs. A version whose next one is still to come is superseded
already, and lapsed until it does: so a memory of which only some versions are in does not stand, and can be forgotten.
What others do meanwhile holds: a memory that they forget or change gets no further versions.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from memcore.store.catalog import Catalog, taken
from memcore.store.links import NEVER, Identity, Linked
from memcore.store.partition import UPSERTED, Partition, Ref
from memcore.store.segment import Columns, Segment

if TYPE_CHECKING:  # a store in RAM does without SQLite until it imports
    from memcore.store.spool import Kept, Name, Rows, Scope

I64 = npt.NDArray[np.int64]
LAST = int(np.iinfo(np.int64).max)  # the seq of a row whose file tells none: after all others


@dataclass(slots=True)
class Progress:
    """How far an import is: `done` of its rows and links, in their order, of which `new` rows and `links` links were
    added; `spans` are the first and last seqs of what it has put in. `now` is the moment of its beginning, `whole`
    whether it keeps the seqs of the file.
    """

    now: int
    done: int = 0
    new: int = 0
    links: int = 0
    whole: bool = False
    spans: list[tuple[int, int]] = field(default_factory=list)

    def text(self) -> str:
        return json.dumps(astuple(self), separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Progress:
        now, done, new, links, whole, spans = json.loads(text)
        return cls(now, done, new, links, whole, [(first, last) for first, last in spans])

    def covers(self, first: int, last: int) -> bool:
        """Whether all rows between two seqs are the import's own."""
        at = bisect.bisect_right(self.spans, (first, LAST)) - 1
        return at >= 0 and self.spans[at][0] <= first and last <= self.spans[at][1]

    def spanned(self, before: int, first: int, last: int) -> None:
        """Takes note of rows that were added to a store whose last seq was `before`."""
        if self.spans and self.spans[-1][1] == before:
            self.spans[-1] = (self.spans[-1][0], last)
        else:
            self.spans.append((first, last))


def foreign(partition: Partition | None, names: set[Name], progress: Progress) -> set[Name]:
    """Those of the ids that have a version here, in the cold tier too, that the import did not add. Under the lock."""
    found: set[Name] = set()
    if partition is None or not names:
        return found
    for segment in (*partition.cold_segments(), *_foreign(partition, progress)):
        for ref in _unforgotten(segment, names):
            if not progress.covers(ref.get("seq"), ref.get("seq")):
                found.add(ref.name)
    return found


def restore(catalog: Catalog, kept: Kept, progress: Progress) -> int:
    """Adds the rows that are new; how many that was. Under the lock.

    Seqs are kept if they are `whole`, and later than all that others have written meanwhile; else they follow on in
    their order.
    """
    c, names = kept.rows
    going: dict[Scope, I64] = {}
    revived: list[tuple[Scope, int]] = []
    for scope, places in _by_scope(names):
        partition = catalog.partition(scope)
        mine = _going(partition, kept, places, progress)
        if mine:
            going[scope] = np.array(list(mine), dtype=np.int64)
            revived += [(scope, seq) for seq in mine.values() if seq]
    if not going:
        return 0
    every = np.sort(np.concatenate(list(going.values())))
    seqs, before = c["seq"][every], catalog.seq
    if not progress.whole or seqs[0] <= before or not (np.diff(seqs) > 0).all():
        c["seq"][every] = np.arange(before + 1, before + 1 + len(every))
    if c["vector"] is not None:
        catalog.settle_dim(c["vector"].shape[1])
    catalog.encode(c, names)
    _mark(kept)
    for scope, places in going.items():
        _add(catalog.partition(scope), c, places, progress)
    for scope, seq in revived:
        catalog.partition(scope).revive(seq)
    catalog.seq = int(c["seq"][every[-1]])
    progress.spanned(before, int(c["seq"][every[0]]), catalog.seq)
    return len(every)


def _by_scope(names: Mapping[str, Sequence[str]]) -> Iterator[tuple[Scope, I64]]:
    """The places of the rows of each scope."""
    codes: dict[Scope, int] = {}
    coded = np.array(
        [codes.setdefault(scope, len(codes)) for scope in zip(names["tenant"], names["project"], strict=True)]
    )
    for scope, code in codes.items():
        yield scope, np.flatnonzero(coded == code)


def _names(columns: Columns, places: I64) -> list[Name]:
    """The ids of rows, in two halves."""
    return list(zip(columns["id_hi"][places].tolist(), columns["id_lo"][places].tolist(), strict=True))


def _foreign(partition: Partition, progress: Progress) -> Iterator[Segment]:
    """The segments that hold rows which the import did not add."""
    for segment in partition.segments:
        if segment.n and not progress.covers(segment.get("seq", 0), segment.get("seq", segment.n - 1)):
            yield segment


def _unforgotten(segment: Segment, names: set[Name]) -> Iterator[Ref]:
    view = segment.view()
    rows = view.rows_with(names)
    for row in rows[view.columns["forgotten_seq"][rows] == 0].tolist():
        yield Ref(segment, row)


def _going(partition: Partition, kept: Kept, places: I64, progress: Progress) -> dict[int, int]:
    """The places of the rows that go in: of memories that aren't here but for what the import has added. Of each the
    seq of the version before it, if that has gone in with an earlier batch, else 0.
    """
    names = _names(kept.rows.columns, places)
    here = foreign(partition, set(names), progress)
    first = int(kept.ranks[0])
    earlier = kept.previous[places]
    waiting = {name for name, rank in zip(names, earlier.tolist(), strict=True) if 0 < rank < first}
    begun: dict[Name, int] = {}
    for segment in partition.segments if waiting else ():
        for ref in _unforgotten(segment, waiting):
            if ref.get("lapsed"):
                begun[ref.name] = ref.get("seq")
    going: dict[int, int] = {}
    goes: dict[Name, bool] = {}
    for place, name, rank in zip(places.tolist(), names, earlier.tolist(), strict=True):
        if rank < first:  # the first row of its memory in this batch
            goes[name] = name not in here and (not rank or name in begun)
        if goes[name]:
            going[place] = begun[name] if 0 < rank < first else 0
    return going


def _mark(kept: Kept) -> None:
    """Marks the rows that do not stand: no snapshot that holds one sees it stand, since it is superseded by its own
    commit; and those of which no later version is in as lapsed.
    """
    c = kept.rows.columns
    gone = c["superseded_seq"] != 0
    c["superseded_seq"] = np.where(gone, c["seq"], 0)
    c["lapsed"] = gone & ~((kept.next > 0) & (kept.next <= kept.ranks[-1]))


def _add(partition: Partition, c: Columns, places: I64, progress: Progress) -> None:
    replaced = _settle_keys(partition, c, places, progress)
    columns = taken(c, places)
    if columns["vector"] is None:
        columns["vector"] = np.zeros((len(places), partition.dim), dtype=np.float32)
    partition.append(columns, len(places))
    for old, by, at in replaced:
        partition.supersede(old, by, at)
        partition.lapse(old)


def _settle_keys(partition: Partition, c: Columns, places: I64, progress: Progress) -> list[tuple[int, int, int]]:
    """Leaves one standing row a key among the new rows and those that are here: the import's own have no rivals among
    themselves.

    Returns the rows here that give way: (its seq, the seq of the row that takes the key, the time of that).
    """
    rivals = list(_foreign(partition, progress))
    replaced: list[tuple[int, int, int]] = []
    for place in places.tolist() if rivals else ():
        key, kind = c["key"][place], int(c["kind"][place])
        if key is None or kind not in UPSERTED or c["superseded_seq"][place]:
            continue
        old, ingested = _standing(rivals, kind, key, progress), int(c["ingested_at"][place])
        if old is None:
            continue
        if old.get("ingested_at") >= ingested:
            c["superseded_seq"][place], c["superseded_at"][place] = c["seq"][place], old.get("ingested_at")
            c["lapsed"][place] = True
        else:
            replaced.append((old.get("seq"), int(c["seq"][place]), ingested))
    return replaced


def _standing(segments: Sequence[Segment], kind: int, key: str, progress: Progress) -> Ref | None:
    """The row under a key that stands and that the import did not add."""
    for segment in reversed(segments):
        for row in reversed(segment.rows_under(key)):
            ref = Ref(segment, row)
            stands = not ref.get("superseded_seq") and not ref.get("forgotten_seq")
            if stands and ref.get("kind") == kind and not progress.covers(ref.get("seq"), ref.get("seq")):
                return ref
    return None


def add_new(catalog: Catalog, rows: Rows, *, now: int) -> int:
    """Adds new memories; how many of them are no retries. Under the lock."""
    added = 0
    for scope, places in _by_scope(rows.names):
        named = {name: [texts[place] for place in places.tolist()] for name, texts in rows.names.items()}
        added += len(catalog.commit(scope, taken(rows.columns, places), named, now=now).fresh)
    return added


def add_links(catalog: Catalog, links: Sequence[Linked], now: int, like: Callable[[Scope, Identity], int]) -> int:
    """Adds links that are new, between memories that are here; how many. Under the lock. `like`: how many the file
    tells that are the same but for their end.

    A link that is here stays, and gets the end that the file tells if none as early is known here. One of which the
    file does not know, and that holds or will, keeps out those of its three that would hold beside it.
    """
    added = 0
    scopes: dict[Scope, list[Linked]] = {}
    for link in links:
        scopes.setdefault(link.scope, []).append(link)
    for scope, told in scopes.items():
        here = catalog.partition(scope).known({end for link in told for end in (link.src, link.dst)})
        line = _Timeline(catalog, scope, {link.src for link in told})
        for link in told:
            if {link.src, link.dst} <= here:
                line.tell(link, now, like)
        if line.ends:
            catalog.end_links(scope, line.ends)
        new = line.new
        if new:
            catalog.link(scope, _columns(new), [link.relation for link in new], [link.attributes for link in new])
        added += len(new)
    return added


class _Timeline:
    """The links from some memories of a scope: those that are here, and behind them those that are `new`. `ends` are
    the rows of such as get another end.
    """

    def __init__(self, catalog: Catalog, scope: Scope, sources: set[Name]) -> None:
        view = catalog.partition(scope).links.view()
        rows = np.flatnonzero(view.seen(catalog.seq) & view.at("src", sources))
        c = view.columns
        cells = [c[name][rows].tolist() for name in ("relation", "created_at", "valid_from")]
        texts = [view.attributes[row] for row in rows.tolist()]
        self.scope = scope
        self.n = view.n
        self.new: list[Linked] = []
        self.ends: dict[int, int] = {}
        self.until = dict(zip(rows.tolist(), view.valid_to(catalog.seq)[rows].tolist(), strict=True))
        self.same: dict[Identity, list[int]] = {}  # the rows of those that are the same but for their end
        self.of: dict[tuple[Name, str, Name], dict[int, Identity]] = {}
        for row, src, dst, text, relation, created, since in zip(
            rows.tolist(), view.names("src", rows), view.names("dst", rows), texts, *cells, strict=True
        ):
            identity = Identity(src, catalog.names[relation], dst, text, created, since)
            self.same.setdefault(identity, []).append(row)
            self.of.setdefault(identity[:3], {})[row] = identity

    def tell(self, link: Linked, now: int, like: Callable[[Scope, Identity], int]) -> None:
        same = self.same.setdefault(link.identity, [])
        if link.nth <= len(same):
            self._end(same[link.nth - 1], link.valid_to)
        elif link.nth == len(same) + 1 and not self._rivals(link, now, like):  # else it comes behind one that stays out
            same.append(self.n + len(self.new))
            self.new.append(link)

    def _end(self, row: int, until: int) -> None:
        """Takes over an end that is told, if none as early is known."""
        known = self.until[row] if row < self.n else self.new[row - self.n].valid_to
        if until == NEVER or (known != NEVER and known <= until):
            return
        if row < self.n:
            self.until[row] = self.ends[row] = until
        else:
            self.new[row - self.n] = self.new[row - self.n]._replace(valid_to=until)

    def _rivals(self, link: Linked, now: int, like: Callable[[Scope, Identity], int]) -> bool:
        """Whether a link that is here, and that the file does not know, holds when this one would, from now on."""
        begins = max(now, link.valid_from)
        for row, other in self.of.get(link.identity[:3], {}).items():
            since, until = max(begins, other.valid_from), self.until[row]
            both = (until == NEVER or until > since) and (link.valid_to == NEVER or link.valid_to > since)
            if both and like(self.scope, other) <= self.same[other].index(row):
                return True
        return False


def _columns(links: Sequence[Linked]) -> Columns:
    columns: Columns = {
        f"{end}_{half}": np.array([getattr(link, end)[place] for link in links], dtype=np.uint64)
        for end in ("src", "dst")
        for place, half in enumerate(("hi", "lo"))
    }
    for name in ("created_at", "valid_from", "valid_to"):
        columns[name] = np.array([getattr(link, name) for link in links], dtype=np.int64)
    return columns
