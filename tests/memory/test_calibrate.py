"""What is measured of graphs and the exact scan, and what the planner makes of it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from memcore import calibrate, sample
from memcore.calibrate import Point
from memcore.cli import main
from memcore.config import Weights
from memcore.search import planner
from memcore.store import graphs, segment

W = Weights(0.5, 0.3, 0.2)


@pytest.fixture
def small(monkeypatch, tmp_path):
    for name, value in {"SIZES": (300, 1200), "_QUERIES": 6, "_BATCH": 12}.items():
        monkeypatch.setattr(calibrate, name, value)
    monkeypatch.setattr(segment, "ROWS", 300)
    monkeypatch.setattr(graphs, "LEAST_ROWS", 300)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_both_are_measured_at_two_sizes(small):
    told = []
    found = calibrate.measure(lambda *how: told.append(how))
    assert {(point.rows, point.weights, point.kind) for point in found.points} == {
        (rows, weights, kind)
        for rows in (300, 1200)
        for weights in calibrate.WEIGHTS
        for kind in ("one query", "in a batch")
    }
    assert all(point.exact_ms > 0 and point.graph_ms > 0 for point in found.points)
    assert set(found.filtered) == {2, 3, 4}
    assert 300 <= found.least_rows <= 1 << 24
    assert found.least_share in (0.25, 1 / 3, 0.5, 1.0)
    assert told[-1] == (1200, 1200, "index")


def test_it_measures_graphs_and_not_the_exact_scan_twice(small, monkeypatch):
    seen = []

    def both(mem, scope, queries, kind, **asked):
        for chosen in (planner.EXACT, planner.Planner("faiss", 0, 0.0)):
            mem._engine.planner = chosen
            seen.append(scope.recall(vector=queries[0], **asked).explain()["plan"])
        return 1.0, 1.0

    monkeypatch.setattr(calibrate, "_both", both)
    calibrate.measure(lambda *how: None)
    assert {plan.split(",")[0] for plan in seen[::2]} == {"exact scan"}
    assert {plan.split(",")[0] for plan in seen[1::2]} == {"faiss HNSW"}


@pytest.mark.parametrize(
    ("exact", "graph", "rows"),
    [
        ((1.0, 4.0), (0.5, 0.6), 1000),  # faster from the first on
        ((0.25, 1.0), (0.5, 0.5), 2000),
        ((0.25, 1.0), (0.4, 0.8), 2760),
        ((0.1, 0.1), (0.5, 0.5), 1 << 24),  # never
    ],
)
def test_where_a_graph_becomes_the_faster(exact, graph, rows):
    pair = [Point(n, W, "one query", e, g) for n, e, g in zip((1000, 4000), exact, graph, strict=True)]
    found = calibrate._crossing(*pair)
    assert rows <= found <= rows * 1.06
    if rows < 1 << 24:
        told_exact, told_graph = calibrate._at(*pair, found)
        assert told_graph <= told_exact


def test_the_least_share_is_the_last_with_which_a_graph_is_faster():
    points = [Point(1000, W, "one query", 0.25, 0.5), Point(4000, W, "one query", 1.0, 0.5)]
    # at 4,000 rows, twice the 2,000 from which it is faster, the scan takes twice as long as the graph
    filtered = {2: (0.8, 0.6), 3: (0.6, 0.6), 4: (0.4, 0.9)}
    assert calibrate._least_share(points, filtered, 2000) == 1 / 3
    assert calibrate._least_share(points, {2: (0.1, 0.6)}, 2000) == 1.0


def test_the_command_tells_and_keeps_it(small, tmp_path):
    file = tmp_path / "memcore" / "planner.json"
    done = CliRunner().invoke(main, ["bench", "--json"], catch_exceptions=False)
    told = json.loads(done.stdout)
    assert (done.exit_code, told["written"], file.exists()) == (0, None, False)
    assert len(told["points"]) == 8
    done = CliRunner().invoke(main, ["bench", "--calibrate"], catch_exceptions=False)
    assert (done.exit_code, file.exists()) == (0, True)
    kept = planner.measured()
    beyond = "" if kept.least_rows <= 1200 else ", by what the two sizes say of larger ones"
    share = f"with filters that {kept.least_share:.0%} or more pass"
    filters = "without a filter" if kept.least_share == 1 else share
    assert done.stdout.splitlines()[-1] == (
        f"graphs are faster from {kept.least_rows:,} rows on{beyond}, {filters}; written to {file}"
    )
    assert planner.planner("auto") == planner.Planner("faiss", *kept)


def test_there_is_as_much_text_as_is_asked_for(monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n# a line of prose that is long enough\n# another line that is long enough\n")
    (tmp_path / "b.py").write_bytes(b"# caf\xe9 is no UTF-8, and this file is passed over\n")
    monkeypatch.setattr(sample.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    one, other = "# a line of prose that is long enough", "# another line that is long enough"
    assert sample.lines(1) == [one]
    assert sample.lines(2) == [one, other]
    many = sample.lines(9)
    assert (many[:2], len(many)) == ([one, other], 9)
    assert all(text.split("; ")[0] in (one, other) for text in many[2:])
