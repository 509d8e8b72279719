"""The command line: `memcore --store DIR VERB`. Results go to stdout, messages and progress to stderr.

Exit 0: done; 1: an error, told in one line; 2: usage. With --json stdout is one JSON document and nothing else. Nothing
heavy is imported before a verb runs, so that --help answers at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import memcore
from memcore.errors import InvalidInput, MemcoreError, NotFound

if TYPE_CHECKING:
    from memcore.memory import Memory, Scope

KINDS = ("working", "episodic", "semantic", "procedural")
EMBEDDERS = ("static", "hashed", "e5")
OWN = "none"  # no embedder: vectors came with the rows
RELEVANCES = ("cosine", "lexical", "hybrid")  # as in `memory`
INDEXES = ("auto", "exact", "faiss", "hnswlib")  # as in `search.planner`, which a command that scores nothing spares
_MANY = 10_000  # rows: what has more tells of them by thousands
_FEW = 1000  # steps, of which each is told: rich takes 10 µs
_CUT = 100  # characters of a content that a line for people shows
_IDS = 10  # that a line for people names


class FilePath(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A path as the file system has it: `Cli` reads arguments as UTF-8, and the file system may not."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return value if isinstance(value, Path) else Path(os.fsdecode(value.encode("utf-8", "surrogateescape")))


class EmbedderName(click.ParamType):  # type: ignore[type-arg]
    """An embedder by its name, or by an address or a model behind it."""

    name = "embedder"

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in self.names or str(value).startswith(("http://", "https://", "sentence-transformers/")):
            return str(value)
        self.fail(
            f"{value!r} is none of {', '.join(self.names)}, nor the URL of an embeddings API with #MODEL behind it, "
            "nor sentence-transformers/MODEL",
            param,
            ctx,
        )

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self.names)}|URL#MODEL|sentence-transformers/MODEL]"


class Cli(click.Group):
    """A group that reads its arguments as UTF-8 whatever the locale. Errors are one line on stderr and exit 1."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # under an ASCII locale Python has escaped every other byte
        return super().parse_args(ctx, [os.fsencode(argument).decode("utf-8", "surrogateescape") for argument in args])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MemcoreError as fault:
            _fail(str(fault))
        except BrokenPipeError:  # the reader of a pipe has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        except OSError as fault:
            _fail(f"{fault.filename}: {fault.strerror}" if fault.filename else str(fault))


def _fail(message: str) -> None:
    click.echo(f"memcore: {message}".encode(errors="backslashreplace"), err=True)
    raise click.exceptions.Exit(1)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Which store and scope the command line names."""

    store: Path | None
    tenant: str
    project: str
    session: str | None
    role: str | None
    embedder: str
    index: str
    scoped: bool  # whether the command line names a scope

    def not_narrowed(self, ctx: click.Context, more: str = "") -> Place:
        """This place, for a verb that concerns the whole store: a scope before it would be taken for a limit."""
        if self.scoped:
            raise click.UsageError(
                f"{ctx.info_name} concerns the whole store: leave --tenant, --project, --session and --role out{more}"
            )
        return self

    def directory(self) -> Path:
        if self.store is None:
            raise click.UsageError("say where the memory is: memcore --store DIR VERB, or set MEMCORE_STORE")
        return self.store

    @contextmanager
    def memory(self, *, embeds: bool = True, creates: bool = False) -> Iterator[Memory]:
        mem = memcore.open(
            self.directory(),
            embedder=self.embedder if embeds and self.embedder != OWN else None,
            index=self.index,
            create=creates,
        )
        try:
            yield mem
        finally:
            mem.close()

    @contextmanager
    def whole(self) -> Iterator[Scope]:
        """The scope that the command line names, or the whole store if it names none; for what embeds no text."""
        with self.memory(embeds=False) as mem:
            yield mem.scope(self.tenant, self.project, self.session, self.role) if self.scoped else mem

    @contextmanager
    def scope(self, *, embeds: bool = False, creates: bool = False) -> Iterator[Scope]:
        with self.memory(embeds=embeds, creates=creates) as mem:
            yield mem.scope(self.tenant, self.project, self.session, self.role)


@click.group(cls=Cli, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", type=FilePath(), envvar="MEMCORE_STORE", help="The store's directory; default: MEMCORE_STORE.")
@click.option("--tenant", default="default", show_default=True, help="Whose memory: an exact id.")
@click.option("--project", default="default", show_default=True, help="Which project of the tenant: an exact id.")
@click.option("--session", help="Only this session; what is written goes into it.")
@click.option("--role", help="Only this agent role; what is written gets it.")
@click.option(
    "--embedder", type=EmbedderName((*EMBEDDERS, OWN)), default="static", show_default=True,
    help="Texts to vectors; none for a store whose rows came with vectors of their own.",
)  # fmt: skip
@click.option("--index", type=click.Choice(INDEXES), default="auto", show_default=True, help="What may answer recall.")
@click.version_option(memcore.__version__, prog_name="memcore")
@click.pass_context
def main(
    ctx: click.Context,
    store: Path | None,
    tenant: str,
    project: str,
    session: str | None,
    role: str | None,
    embedder: str,
    index: str,
) -> None:
    """The memory of LLM agents: remember, recall, forget, and replay recorded lives."""
    if store is not None and store == Path() and ctx.get_parameter_source("store") is not None:
        raise InvalidInput("--store is blank; name the store's directory, for the one you are in as ./")
    scoped = any(_given(ctx, name) for name in ("tenant", "project", "session", "role"))
    ctx.obj = Place(store, tenant, project, session, role, embedder, index, scoped)


def _given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
now_option = click.option("--now", help="The moment it is: ISO 8601 with a zone, or seconds since the epoch.")
as_of_option = click.option("--as-of", help="As the memory stood at this moment.")
kinds_option = click.option(
    "--kind", "kinds", type=click.Choice(KINDS), multiple=True,
    help="Only this kind; may be given several times. Default: every kind, for recall episodic and semantic.",
)  # fmt: skip
tiers_option = click.option(
    "--tiers", default="hot", show_default=True, help="Where to look: hot, cold (what prune moved out), or hot,cold."
)
where_option = click.option(
    "--where", multiple=True, metavar="NAME=VALUE",
    help="Only where a column or metadata.KEY has this value (a JSON value, or else a text); all must hold.",
)  # fmt: skip


@main.command()
@click.argument("content")
@click.option("--kind", type=click.Choice(KINDS), default="episodic", show_default=True)
@click.option("--key", help="The name of a semantic or procedural memory: a new one replaces the old.")
@click.option("--importance", type=float, default=0.5, show_default=True)
@click.option("--event-time", help="When it happened; default now.")
@click.option("--expires-at", help="From when on it is no longer true.")
@click.option("--metadata", help="A JSON object.")
@click.option("--source", default="observation", show_default=True)
@click.option("--confidence", type=float, default=1.0, show_default=True)
@click.option("--untrusted", is_flag=True, help="Its content comes from a source that is not to be trusted.")
@click.option("--idempotency-key", help="A retried command with the same key stores nothing.")
@now_option
@as_json
@click.pass_obj
def remember(
    place: Place, /, content: str, as_json: bool, event_time: str | None, expires_at: str | None, metadata: str | None,
    now: str | None, **fields: Any,
) -> None:  # fmt: skip
    """Store one memory. CONTENT is a text, or - to read it from standard input, but for a line end at its end."""
    with place.scope(embeds=True, creates=True) as scope:
        record = scope.remember(
            _content(content),
            event_time=_time(event_time, "--event-time"),
            expires_at=_time(expires_at, "--expires-at"),
            metadata=_object(metadata, "--metadata"),
            now=_time(now, "--now"),
            **fields,
        )
    _show(record, as_json, lambda: f"remembered {record.id}, version {record.version}")


@main.command()
@click.argument("query", required=False)
@click.option("-k", type=int, default=5, show_default=True, help="How many.")
@kinds_option
@where_option
@click.option(
    "--relevance", type=click.Choice(RELEVANCES), default="hybrid", show_default=True,
    help="By vectors, by words (BM25), or by both and the turns beside.",
)  # fmt: skip
@click.option("--weights", help="alpha,beta,gamma of relevance, recency and importance; default 0.5,0.3,0.2.")
@click.option("--decay-rate", help="Per hour, or a preset: default, focused, balanced, lasting.")
@click.option("--half-life", type=float, help="In hours, in place of a rate.")
@click.option("--min-similarity", type=float)
@click.option("--min-score", type=float)
@click.option("--budget-tokens", type=int, help="As many as a prompt of so many tokens has room for, in place of -k.")
@click.option("--prompt", is_flag=True, help="As a text for a language model.")
@tiers_option
@now_option
@as_of_option
@click.option("--explain", is_flag=True, help="Also how it was found: the plan, what was read, what took how long.")
@as_json
@click.pass_obj
def recall(
    place: Place, query: str | None, k: int, kinds: Sequence[str], where: Sequence[str], relevance: str,
    weights: str | None, decay_rate: str | None, half_life: float | None, min_similarity: float | None,
    min_score: float | None, budget_tokens: int | None, prompt: bool, tiers: str, now: str | None, as_of: str | None,
    explain: bool, as_json: bool,
) -> None:  # fmt: skip
    """The best memories for QUERY by relevance, recency and importance; without one, by the latter two."""
    with place.scope(embeds=query is not None and relevance != "lexical") as scope:
        hits = scope.recall(
            query,
            k=k,
            relevance=relevance,
            kinds=kinds or ("episodic", "semantic"),
            where=_where(where),
            weights=_weights(weights),
            decay_rate=_rate(decay_rate),
            half_life=half_life,
            min_similarity=min_similarity,
            min_score=min_score,
            budget_tokens=budget_tokens,
            tiers=tiers.split(","),
            now=_time(now, "--now"),
            as_of=_time(as_of, "--as-of"),
        )
    if prompt:
        _show({"prompt": hits.to_prompt()}, as_json, hits.to_prompt)
        return
    if not explain:
        _show(list(hits), as_json, lambda: _hit_lines(hits))
        return
    told = hits.explain()
    lines = "\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in told.items())
    _show({"hits": [_plain(hit) for hit in hits], "explain": told}, as_json, lambda: f"{_hit_lines(hits)}\n{lines}")


@main.command()
@click.argument("id", required=False)
@click.option("--key", help="By key, in place of an id.")
@click.option("--kind", type=click.Choice(KINDS), help="Which kind's key.")
@tiers_option
@now_option
@as_of_option
@as_json
@click.pass_obj
def get(
    place: Place, id: str | None, key: str | None, kind: str | None, tiers: str, now: str | None, as_of: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """One memory, by ID or --key."""
    with place.scope() as scope:
        record = scope.get(
            id, key=key, kind=kind, tiers=tiers.split(","), now=_time(now, "--now"), as_of=_time(as_of, "--as-of")
        )
    if record is None:
        raise NotFound(
            f"no memory {id or key!r} in tenant {place.tenant!r}, project {place.project!r}: see memcore list"
        )
    _show(record, as_json, lambda: _record_lines(record))


@main.command(name="list")
@kinds_option
@where_option
@click.option("--limit", type=int, default=50, show_default=True)
@click.option("--offset", type=int, default=0, show_default=True)
@tiers_option
@now_option
@as_of_option
@as_json
@click.pass_obj
def list_(
    place: Place, kinds: Sequence[str], where: Sequence[str], limit: int, offset: int, tiers: str, now: str | None,
    as_of: str | None, as_json: bool,
) -> None:  # fmt: skip
    """The memories of the scope, in the order they were last written."""
    with place.scope() as scope:
        records = scope.list(
            kinds=kinds or KINDS, where=_where(where), limit=limit + 1 if limit > 0 else limit, offset=offset,
            tiers=tiers.split(","), now=_time(now, "--now"), as_of=_time(as_of, "--as-of"),
        )  # fmt: skip
    shown = records[:limit]
    if len(records) > len(shown):
        click.echo(f"memcore: {limit} shown; --offset {offset + limit} goes on", err=True)
    _show(list(shown), as_json, lambda: "\n".join(_line(record) for record in shown) or "nothing here")


@main.command()
@click.argument("id")
@click.option("--content", help="A new text, or - to read it from standard input.")
@click.option("--importance", type=float)
@click.option("--event-time")
@click.option("--expires-at", help="A time, or 'never'.")
@click.option("--metadata", help="A JSON object that replaces the old one.")
@click.option("--source")
@click.option("--confidence", type=float)
@click.option("--untrusted/--trusted", default=None)
@click.option("--if-version", type=int, help="Only if this version stands.")
@now_option
@as_json
@click.pass_obj
def update(
    place: Place, /, id: str, content: str | None, event_time: str | None, expires_at: str | None, metadata: str | None,
    if_version: int | None, now: str | None, as_json: bool, **fields: Any,
) -> None:  # fmt: skip
    """Make the next version of the memory ID with some fields changed."""
    changes = {name: value for name, value in fields.items() if value is not None}
    if content is not None:
        changes["content"] = _content(content)
    if event_time is not None:
        changes["event_time"] = _time(event_time, "--event-time")
    if expires_at is not None:
        changes["expires_at"] = None if expires_at == "never" else _time(expires_at, "--expires-at")
    if metadata is not None:
        changes["metadata"] = _object(metadata, "--metadata")
    with place.scope(embeds=content is not None) as scope:
        record = scope.update(id, if_version=if_version, now=_time(now, "--now"), **changes)
    _show(record, as_json, lambda: f"updated {record.id}, version {record.version}")


@main.command()
@click.argument("ids", nargs=-1)
@kinds_option
@where_option
@click.option("--older-than-days", type=float, help="The event is older than this.")
@click.option("--max-access", type=int, help="Recalled at most so often.")
@click.option("--everything", is_flag=True, help="All memories of the scope.")
@click.option("--erase", is_flag=True, help="For good: restore does not bring it back.")
@click.option("--dry-run", is_flag=True, help="Tell what would go, and do nothing.")
@now_option
@as_json
@click.pass_obj
def forget(
    place: Place, ids: Sequence[str], kinds: Sequence[str], where: Sequence[str], older_than_days: float | None,
    max_access: int | None, everything: bool, erase: bool, dry_run: bool, now: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Forget memories by IDS, or by conditions that must all hold. Exit 1 if one of the IDS could not be forgotten.

    With --erase, summaries that were made of what goes are erased too.
    """
    with place.scope() as scope:
        report = scope.forget(
            list(ids) or None,
            kinds=kinds or None,
            where=_where(where),
            older_than_days=older_than_days,
            max_access=max_access,
            everything=everything,
            erase=erase,
            dry_run=dry_run,
            now=_time(now, "--now"),
        )
    verb = "would forget" if dry_run else "forgot"
    along = len(report.cascaded)
    told = [f"{verb} {report.count}"]
    if along:
        summaries = f"{along} {'summary' if along == 1 else 'summaries'} of it, for good: {', '.join(report.cascaded)}"
        told.append(f"and {'would erase' if dry_run else 'erased'} {summaries}")
    told += [f"not here: {', '.join(report.missing)}"] * bool(report.missing)
    told += [
        f"rewritten in another session or role, forget it without --session and --role: {', '.join(report.elsewhere)}"
    ] * bool(report.elsewhere)
    _show({**_plain(report), "count": report.count}, as_json, lambda: "; ".join(told))
    if report.missing or report.elsewhere:
        click.get_current_context().exit(1)


@main.command()
@click.argument("ids", nargs=-1, required=True)
@as_json
@click.pass_obj
def restore(place: Place, ids: Sequence[str], as_json: bool) -> None:
    """Bring back memories that were forgotten, or that prune moved out, by IDS. Exit 1 if one could not be."""
    with place.scope() as scope:
        report = scope.restore(list(ids))
    told = [f"restored {report.count}"]
    told += [f"not to be had: {', '.join(report.missing)}"] * bool(report.missing)
    told += [f"id, key or idempotency key in use: {', '.join(report.in_use)}"] * bool(report.in_use)
    _show({**_plain(report), "count": report.count}, as_json, lambda: "; ".join(told))
    if report.missing or report.in_use:
        click.get_current_context().exit(1)


@main.command()
@kinds_option
@where_option
@as_json
@click.pass_obj
def forgotten(place: Place, kinds: Sequence[str], where: Sequence[str], as_json: bool) -> None:
    """What was forgotten and can still be restored, in the order it was last written."""
    with place.scope() as scope:
        records = list(scope.forgotten(kinds=kinds or KINDS, where=_where(where)))
    _show(records, as_json, lambda: "\n".join(_line(record) for record in records) or "nothing here")


@main.command()
@as_json
@click.pass_context
def compact(ctx: click.Context, as_json: bool) -> None:
    """Free what was forgotten, for good: no file of the store has a byte of it afterwards. Of the whole store."""
    place: Place = ctx.obj.not_narrowed(ctx)
    with place.memory(embeds=False) as mem, _progress("compact") as progress:
        report = mem.compact(progress=progress)
    told = (
        f"dropped {report.dropped:,} rows; {report.written:,} files written, {report.removed:,} removed; "
        f"{report.bytes_before:,} bytes before, {report.bytes_after:,} after"
    )
    if report.indexed:
        told += f"; a graph made over {report.indexed:,} rows"
    _show(report, as_json, lambda: told)


@main.command()
@click.option("--repair", is_flag=True, help="Keep what is whole, rebuild what follows from it, put the rest aside.")
@as_json
@click.pass_context
def verify(ctx: click.Context, repair: bool, as_json: bool) -> None:
    """Check every checksum, reference and count of the store, also of one that cannot be opened. Exit 1: not all well.

    With --repair what is wrong is mended, from all that is whole; nothing is deleted, and what is lost is told. Exit 1
    then: something is lost, or still wrong.
    """
    place: Place = ctx.obj.not_narrowed(ctx)
    with _progress("verify") as progress:
        report = memcore.verify(place.directory(), repair=repair, progress=progress)
    lossless = report.repair is None or report.repair.lossless
    _show({"ok": report.ok, "lossless": lossless, **_plain(report)}, as_json, lambda: _report_lines(report))
    if not (report.ok and lossless):
        ctx.exit(1)


@main.command()
@click.option("--importance-below", type=float, default=0.3, show_default=True)
@click.option("--recency-below", type=float, default=0.05, show_default=True)
@click.option("--decay-rate", help="Per hour, or a preset: default, focused, balanced, lasting.")
@click.option("--retention-days", type=float, help="Erase for good what is older than this, in either tier.")
@click.option("--retention-kind", type=click.Choice(KINDS), help="Only this kind, with --retention-days.")
@click.option("--dry-run", is_flag=True, help="Tell what would go, and do nothing.")
@now_option
@as_json
@click.pass_obj
def prune(
    place: Place, importance_below: float, recency_below: float, decay_rate: str | None, retention_days: float | None,
    retention_kind: str | None, dry_run: bool, now: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Move faded episodic memories to the cold tier: of the scope that is named before the verb, or else of all."""
    if retention_kind is not None and retention_days is None:
        raise click.UsageError("--retention-kind needs --retention-days")
    rules = [] if retention_days is None else [memcore.Retention(days=retention_days, kind=retention_kind)]
    with place.whole() as mem:
        report = mem.prune(
            importance_below=importance_below,
            recency_below=recency_below,
            decay_rate=_rate(decay_rate),
            retention=rules,
            dry_run=dry_run,
            now=_time(now, "--now"),
        )
    verb = "would move" if dry_run else "moved"
    erased = "erase" if dry_run else "erased"
    told = f"{verb} {len(report.moved)} of {report.examined} to the cold tier, and {erased} {len(report.erased)}"
    _show({**_plain(report), "count": report.count}, as_json, lambda: "\n".join([told, report.explain()]))


@main.command()
@click.argument("key", required=False)
@click.option("--id", help="By id, in place of a key.")
@click.option("--kind", type=click.Choice(KINDS), help="Which kind's key.")
@tiers_option
@as_json
@click.pass_obj
def history(place: Place, key: str | None, id: str | None, kind: str | None, tiers: str, as_json: bool) -> None:
    """All versions of one memory, oldest first."""
    asked = tiers.split(",")
    with place.scope() as scope:
        records = list(scope.history(key, id=id, kind=kind, tiers=asked))
        if not records and "cold" not in asked and scope.history(key, id=id, kind=kind, tiers="cold"):
            click.echo("memcore: it lies in the cold tier: --tiers hot,cold shows it", err=True)
        elif not records:
            raise NotFound(
                f"no memory {id or key!r} in tenant {place.tenant!r}, project {place.project!r}: see memcore list"
                + ("" if key is None else "; for one by its id use --id")
            )
    _show(records, as_json, lambda: "\n".join(_line(record) for record in records) or "nothing here")


@main.command()
@click.argument("src")
@click.argument("relation")
@click.argument("dst")
@click.option("--attributes", help="A JSON object.")
@click.option("--valid-from", help="From when on it holds; default ever.")
@click.option("--valid-to", help="Up to when it holds; default for ever.")
@now_option
@as_json
@click.pass_obj
def link(
    place: Place, src: str, relation: str, dst: str, attributes: str | None, valid_from: str | None,
    valid_to: str | None, now: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Link the memory SRC by a RELATION to the memory DST, both by id; it replaces what was told of the same time."""
    with place.scope() as scope:
        made = scope.link(
            src,
            relation,
            dst,
            attributes=_object(attributes, "--attributes"),
            valid_from=_time(valid_from, "--valid-from"),
            valid_to=_time(valid_to, "--valid-to"),
            now=_time(now, "--now"),
        )
    _show(made, as_json, lambda: _link_line(made))


@main.command()
@click.argument("src")
@click.argument("relation", required=False)
@click.argument("dst", required=False)
@now_option
@as_json
@click.pass_obj
def unlink(place: Place, src: str, relation: str | None, dst: str | None, now: str | None, as_json: bool) -> None:
    """End the links from the memory SRC, all of them or by a RELATION and to the memory DST."""
    with place.scope() as scope:
        count = scope.unlink(src, relation, dst, now=_time(now, "--now"))
    _show({"count": count}, as_json, lambda: f"ended {count}")


@main.command()
@click.argument("id", required=False)
@click.option("--relation", help="Only by this relation.")
@click.option(
    "--direction", type=click.Choice(("both", "out", "in")), default="both", show_default=True,
    help="From the memory, to it, or both.",
)  # fmt: skip
@now_option
@click.option("--as-of", help="Those that were made by this moment and held then.")
@as_json
@click.pass_obj
def links(
    place: Place, id: str | None, relation: str | None, direction: str, now: str | None, as_of: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """The links that hold: of the memory ID, or of the whole scope."""
    with place.scope() as scope:
        found = list(
            scope.links(
                id, relation=relation, direction=direction, now=_time(now, "--now"), as_of=_time(as_of, "--as-of")
            )
        )
    _show(found, as_json, lambda: "\n".join(map(_link_line, found)) or "nothing here")


@main.command()
@as_json
@click.pass_obj
def stats(place: Place, as_json: bool) -> None:
    """Counts and sizes: of the scope that is named before the verb, or else of the whole store."""
    with place.whole() as mem:
        counts = mem.stats()
    _show(counts, as_json, lambda: "\n".join(f"{name:16} {_flat(value)}" for name, value in counts.items()))


@main.command()
@click.argument("path", type=FilePath())
@click.option(
    "--format", "format_", type=click.Choice(("json", "jsonl", "parquet")), help="Default: by the name's ending."
)
@as_json
@click.pass_obj
def export(place: Place, path: Path, format_: str | None, as_json: bool) -> None:
    """Write the scope that is named before the verb, or else the whole store, to PATH: .json, .jsonl or .parquet."""
    with place.whole() as mem, _progress("export") as progress:
        rows = mem.export(path, format_, progress=progress)
    _show({"path": str(path), "rows": rows}, as_json, lambda: f"wrote {rows:,} rows to {path}")


@main.command(name="import")
@click.argument("path", type=FilePath())
@click.option(
    "--format", "format_", type=click.Choice(("json", "jsonl", "parquet")), help="Default: by the name's ending."
)
@as_json
@click.pass_context
def import_(ctx: click.Context, path: Path, format_: str | None, as_json: bool) -> None:
    """Add what export wrote, or JSON lines with 'content' and the other fields of remember.

    Rows go into the scope that they name by tenant_id, project_id, session_id and agent_role, else into "default".
    """
    named = ": rows say theirs by tenant_id, project_id, session_id and agent_role"
    place: Place = ctx.obj.not_narrowed(ctx, named)
    path.stat()  # that it is not there is told before a store is made
    with place.memory(creates=True) as mem, _progress("import") as progress:
        report = mem.import_(path, format_, progress=progress)
    linked = f" and {report.links:,} links" if report.links else ""
    _show(
        _plain(report), as_json, lambda: f"imported {report.new:,} rows{linked}; {report.present:,} were here already"
    )


@main.command()
@click.argument("embedder", type=EmbedderName(EMBEDDERS))
@as_json
@click.pass_context
def reembed(ctx: click.Context, embedder: str, as_json: bool) -> None:
    """Embed all texts of the store anew with EMBEDDER. Interrupted, it goes on where it was when it is called again."""
    place: Place = ctx.obj.not_narrowed(ctx)
    with place.memory(embeds=False) as mem, _progress("reembed") as progress:
        report = mem.reembed(embedder, progress=progress)
    kept = f"; {report.kept:,} had been before" if report.kept else ""
    _show(_plain(report), as_json, lambda: f"embedded {report.rows:,} rows with {report.embedder}{kept}")


@main.command()
@click.argument("trace")
@click.option(
    "--format", "format_", default="auto", show_default=True, help="jsonl, locomo, longmemeval, chat, git, parquet."
)
@click.option("--k", "ks", default="5,10,25,50", show_default=True, help="Where recall is measured.")
@click.option("--embedder", type=EmbedderName(EMBEDDERS), help="Default: the one before the verb, or else static.")
@click.option("--relevance", type=click.Choice(RELEVANCES), help="Default: hybrid.")
@click.option("--compare", help="Several relevances side by side, such as cosine,lexical,hybrid; the first in detail.")
@click.option(
    "--weights", default="1,0,0", show_default=True,
    help="alpha,beta,gamma of relevance, recency and importance: relevance alone, as evidence is of any age.",
)  # fmt: skip
@click.option("--decay-rate", help="Per hour, or a preset: default, focused, balanced, lasting.")
@click.option("--answers", type=FilePath(), help="Write what was retrieved, one JSON line a question.")
@click.option("--report", type=FilePath(), help="Write the report: .md or .json.")
@click.option("--store", type=FilePath(), help="Keep the memory in this directory; default RAM.")
@click.option("--limit", type=int, help="At most so many events a trace.")
@as_json
@click.pass_context
def replay(
    ctx: click.Context, trace: str, format_: str, ks: str, embedder: str | None, relevance: str | None,
    compare: str | None, weights: str, decay_rate: str | None, answers: Path | None, report: Path | None,
    store: Path | None, limit: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Play a recorded TRACE through memcore and report how well and how fast it remembered.

    TRACE is a file, a git repository, or the name of the shipped trace: ops_agent.
    """
    from memcore.replay import loaders, metrics, runner

    if report is not None and report.suffix not in (".md", ".json"):
        raise click.UsageError(f"--report {report}: end the name in .md or .json")
    if relevance is not None and compare is not None:
        raise click.UsageError("--relevance and --compare both say what is asked: pass one of them")
    several = [name.strip() for name in (relevance or "hybrid" if compare is None else compare).split(",")]
    for name in several:
        if name not in RELEVANCES:
            raise click.UsageError(f"--compare {compare}: {name!r} is none of {', '.join(RELEVANCES)}")
    _check_outputs(_trace_path(trace), answers, report)
    place: Place = ctx.obj
    embedder = embedder or place.embedder
    if embedder == OWN:
        raise click.UsageError("replay embeds texts: leave --embedder none out")
    if store is None and ctx.parent is not None and _given(ctx.parent, "store"):
        store = place.store  # not that of MEMCORE_STORE: a replay does not go into one's own memory unasked
    traces = loaders.load(_trace_path(trace), format_, limit=limit)
    settings = runner.Settings(_whole_numbers(ks), several[0], _weights(weights), _rate(decay_rate), tuple(several))
    with memcore.open(store, embedder=embedder) as mem, _progress("replay") as progress:
        told, given = runner.play(traces, mem, settings, progress=progress)
    if answers is not None:
        _write(answers, "".join(f"{metrics.answers_line(answer)}\n" for answer in given))
    if report is not None:
        _write(report, told.to_json() if report.suffix == ".json" else told.to_markdown())
    _out(told.to_json() if as_json else told.to_markdown())


@main.command()
@click.option("--calibrate", is_flag=True, help="Have stores of this user go by what is measured.")
@as_json
def bench(calibrate: bool, as_json: bool) -> None:
    """Measure on this machine from how many rows on an HNSW graph recalls faster than the exact scan: about a minute.

    With --calibrate, stores that are opened with index="auto", the default, go by that; until then graphs begin at a
    million rows of a scope.
    """
    from memcore import calibrate as calibration

    with _progress("bench") as progress:
        found = calibration.measure(progress)
    kept = calibration.keep(found) if calibrate else None
    lines = [f"{'rows':>9}  {'weights':<15} {'':<12} {'exact ms':>9} {'graph ms':>9}"]
    for p in found.points:
        weights = ", ".join(f"{share:g}" for share in p.weights)
        lines.append(f"{p.rows:>9,}  {weights:<15} {p.kind:<12} {p.exact_ms:>9.3f} {p.graph_ms:>9.3f}")
    filters = (
        "without a filter" if found.least_share == 1 else f"with filters that {found.least_share:.0%} or more pass"
    )
    beyond = "" if found.least_rows <= found.points[-1].rows else ", by what the two sizes say of larger ones"
    lines.append(
        f"graphs are faster from {found.least_rows:,} rows on{beyond}, {filters}"
        + ("" if kept is None else f"; written to {kept}")
    )
    _show({**_plain(found), "written": kept}, as_json, lambda: "\n".join(lines))


def _check_outputs(trace: Path, *outputs: Path | None) -> None:
    """Before the work begins: what is written must have a place, and must replace neither the trace nor each other."""
    taken = {trace.absolute()}
    for path in outputs:
        if path is None:
            continue
        if path.absolute() in taken:
            raise InvalidInput(f"{path} is named twice, or is the trace itself; write to another file")
        if not path.absolute().parent.is_dir():
            raise InvalidInput(f"cannot write {path}: its folder is not there; make it first")
        taken.add(path.absolute())


def _trace_path(name: str) -> Path:
    """A path, or the name of a trace that comes with memcore: beside the package when installed, or in a checkout."""
    path = Path(name)
    if path.exists() or path.suffix or len(path.parts) > 1:
        return path
    package = Path(memcore.__file__).parent
    shipped = (package / "datasets" / f"{name}.jsonl", package.parent / "datasets" / f"{name}.jsonl")
    return next((place for place in shipped if place.exists()), path)


@contextmanager
def _progress(doing: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr where that is a terminal; else nothing."""
    if not sys.stderr.isatty():
        yield lambda done, total, label: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)

        def advance(done: int, total: int, label: str) -> None:
            if done % 50 == 0 or done == total or total > _MANY or total < _FEW:
                bar.update(task, completed=done, total=total, description=label)

        yield advance


# Values of the command line


def _content(text: str) -> str:
    if text != "-":
        return text
    if sys.stdin is None:
        raise InvalidInput("standard input is closed; give the text as an argument")
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as fault:
        raise InvalidInput(
            f"standard input is not UTF-8 ({fault.reason} at byte {fault.start}); convert it first"
        ) from None
    return text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")  # which ends the line and is not of the text


def _time(text: str | None, what: str) -> float | None:
    if text is None:
        return None
    from memcore import clock

    return clock.parse(text, what) / clock.MICROS


def _object(text: str | None, what: str) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise InvalidInput(f'{what} is not JSON ({fault}); pass an object such as {{"host": "web01"}}') from None
    if not isinstance(value, dict):
        raise InvalidInput(f'{what} is {text!r}; pass a JSON object such as {{"host": "web01"}}')
    return value


def _where(pairs: Sequence[str]) -> dict[str, Any] | None:
    conditions: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InvalidInput(f"--where is {pair!r}; write NAME=VALUE, such as metadata.host=web01")
        if name in conditions:
            raise InvalidInput(f"--where names {name!r} twice; a column has one value")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        conditions[name] = value
    return conditions or None


def _numbers(text: str, what: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"{what} is {text!r}; write numbers with commas between them") from None


def _weights(text: str | None) -> tuple[float, float, float] | None:
    if text is None:
        return None
    from memcore import config

    return config.weights(tuple(_numbers(text, "--weights")))


def _rate(text: str | None) -> float | str | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text  # a preset's name, or what the gate refuses


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(
            f"--k is {text!r}; write whole numbers with commas between them, such as 5,10,25,50"
        ) from None


# What is shown


def _show(value: Any, as_json: bool, text: Callable[[], str]) -> None:
    _out(json.dumps(_plain(value), ensure_ascii=False, indent=2) if as_json else text())


def _out(text: str) -> None:
    """UTF-8 to stdout whatever the locale says, with one line end at the end."""
    click.echo(f"{text.rstrip()}\n".encode(errors="backslashreplace"), nl=False)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _plain(value: Any) -> Any:
    """As JSON values: records and hits as objects without their vector, times in ISO 8601 with a zone."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value) if field.name != "vector")
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.isoformat().replace("+00:00", "Z") if hasattr(value, "isoformat") else value


def _one_line(text: str) -> str:
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
    return line if len(line) <= _CUT else line[: _CUT - 1] + "…"


def _line(record: Any) -> str:
    named = f" {record.key}:" if record.key else ""
    head = f"{record.id}  {record.event_time:%Y-%m-%d %H:%M}Z  {record.kind:10} v{record.version}"
    return f"{head}{named} {_one_line(record.content)}"


def _link_line(link: Any) -> str:
    said = [_one_line(_flat(link.attributes))] if link.attributes else []
    said += [f"from {_plain(link.valid_from)}"] if link.valid_from else []
    said += [f"to {_plain(link.valid_to)}"] if link.valid_to else []
    return "  ".join([link.src_id, _one_line(link.relation), link.dst_id, *said])


def _hit_lines(hits: Any) -> str:
    from memcore.search.prompt import age

    lines = []
    for rank, hit in enumerate(hits, 1):
        named = f"{hit.key}: " if hit.key else ""
        lines.append(f"{rank:3}. {hit.total_score:.4f}  {named}{_one_line(hit.content)}")
        lines.append(
            f"     {'similarity' if hit.semantic_similarity == hit.relevance_component else 'relevance'} "
            f"{hit.relevance_component:.3f}, "
            f"recency {hit.recency_component:.3f} ({age(hit.age_hours)}), "
            f"importance {hit.importance_component:.2f}; {hit.kind}, {hit.id}"
        )
    return "\n".join(lines) or "nothing found"


def _record_lines(record: Any) -> str:
    fields = {name: value for name, value in _plain(record).items() if value not in (None, {}) and name != "content"}
    content = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in record.content)
    return "\n".join([content, "", *(f"{name:16} {_flat(value)}" for name, value in fields.items())])


def _report_lines(report: Any) -> str:
    repair = report.repair
    told = "all is as it was written" if report.ok else f"{len(report.problems)} problems"
    if repair is not None and not repair.lossless:
        told = f"repaired with losses: {_losses(repair)}" + ("" if report.ok else f"; {told} are left")
    elif repair is not None and report.ok:
        told = "repaired, and nothing is lost"
    lines = [f"{report.path}: {told}", *(f"  {problem}" for problem in report.problems)]
    if repair is not None:
        lines += ["repaired:", *(f"  {problem}" for problem in report.found)]
        for name in ("kept", "rebuilt", "lost"):
            counts = ", ".join(f"{n:,} {what.replace('_', ' ')}" for what, n in getattr(repair, name).items())
            lines.append(f"  {name}: {counts or 'nothing'}")
        for name in ("lost_ids", "at_risk", "fell_back", "unknown", "moved"):
            if items := getattr(repair, name):
                more = f" and {len(items) - _IDS:,} more" if len(items) > _IDS else ""
                lines.append(f"  {name.replace('_', ' ')}: {', '.join(items[:_IDS])}{more}")
        lines += [f"  {note}" for note in repair.notes]
        lines.append(f"  what was put aside, and the whole report: {repair.aside}")
    lines += [f"checked: {', '.join(f'{n:,} {what.replace(chr(95), chr(32))}' for what, n in report.checked.items())}"]
    return "\n".join([*lines, *(f"note: {note}" for note in report.notes)])


def _losses(repair: Any) -> str:
    told = [f"{n:,} {what.replace('_', ' ')}" for what, n in repair.lost.items()]
    if not repair.lost and repair.lost_ids:
        told.append(f"{len(repair.lost_ids):,} ids")
    if repair.at_risk:
        told.append(f"marks, so that {len(repair.at_risk):,} memories may be here although they were forgotten")
    if repair.fell_back:
        told.append(f"the last version of {len(repair.fell_back):,} memories")
    if repair.unknown:
        told.append(f"some of the catalog's {', '.join(repair.unknown)}, how many is not known")
    return "; ".join(told)


def _flat(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)
