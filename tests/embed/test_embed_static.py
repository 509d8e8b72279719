"""The static embedder is wordllama's, loaded from its wheel, and reads texts as its docstring says."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import memcore
from memcore.embed import StaticEmbedder, static

EMBEDDER = StaticEmbedder()


def test_name_width_and_fingerprint():
    assert EMBEDDER.name == "static"
    assert EMBEDDER.dim == 256
    assert re.fullmatch("static/l2_supercat/256/[0-9a-f]{8}/2", EMBEDDER.fingerprint)


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need a privilege there")
@pytest.mark.parametrize(
    "file", ["", "weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json"]
)
def test_the_fingerprint_is_that_of_the_files_and_not_of_the_release(python, tmp_path, file):
    """A wordllama of another version with the same files makes the same vectors; one changed byte makes others."""
    link_packages(tmp_path)
    copy = tmp_path / "wordllama"
    shutil.copytree(Path(find_spec("wordllama").origin).parent, copy)
    (tmp_path / "wordllama-99.0.dist-info").mkdir()
    (tmp_path / "wordllama-99.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: wordllama\nVersion: 99.0\n"
    )
    if file:
        data = bytearray((copy / file).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / file).write_bytes(data)
    code = """
        from importlib.metadata import version
        from memcore.embed import StaticEmbedder
        print(version("wordllama"), StaticEmbedder().fingerprint, StaticEmbedder().fingerprint)
    """
    version, first, second = python(code, options=["-S"], env={**os.environ, "PYTHONPATH": str(tmp_path)}).split()
    assert version == "99.0"
    assert first == second
    assert (first == EMBEDDER.fingerprint) is not bool(file)


def test_the_checksum_is_taken_once_a_process_and_not_before_it_is_asked_for(python):
    code = """
        from memcore.embed import static
        taken, crc32 = [], static.crc32
        static.crc32 = lambda data, start: taken.append(len(data)) or crc32(data, start)
        embedders = [static.StaticEmbedder(), static.StaticEmbedder()]
        assert taken == []
        assert len({embedder.fingerprint for embedder in embedders}) == 1
        assert len(taken) == 2 and min(taken) > 1_000_000, taken
    """
    python(code)


def test_vectors_are_weighted_sums_of_what_wordllama_has(python):
    """Against its own table and tokenizer, word by word and number by number."""
    code = """
        import warnings
        from pathlib import Path
        import numpy as np
        import wordllama
        from memcore.embed import StaticEmbedder

        texts = {
            "HTTP 504, on /billing!": ["http", "504", "on", "billing"],
            "O pagamento não foi concluído...": ["o", "pagamento", "não", "foi", "concluído"],
            "x": ["x"], "naïve_café": ["naïve", "café"], "👍🏽 “done”": ["👍", "🏽", "done"],
            "日本語 ok": ["日", "本", "語", "ok"],
            "srv-prod-db01.internal:5432": ["srv", "prod", "db01", "internal", "5432"], "a" * 30: ["a" * 30],
            "?! ...": ["?!", "..."], "हिन्दी": ["हिन्दी"], "का\u0301": ["का\u0301"],
        }
        model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
        for text, words in texts.items():
            total = np.zeros(256)
            for word in words:
                ids = model.tokenizer.encode(word, add_special_tokens=False).ids
                rank = ids[0] - 259 + 1 if len(ids) == 1 and ids[0] >= 259 else 31741 if len(ids) > 1 else 32000
                weight = 5e-4 / (5e-4 + 0.1 / (rank + 3))
                total += weight * model.embedding[ids].astype(np.float64).sum(axis=0) / len(ids) ** 0.5
            got = StaticEmbedder().embed([text])[0]
            assert np.abs(got - total / np.linalg.norm(total)).max() < 1e-6, text
    """
    python(code, options=())  # whatever warnings the import of wordllama's own dependencies brings


def test_loading_needs_no_network_and_leaves_logging_alone(python):
    code = """
        import logging, socket

        def refuse(*arguments, **named):
            raise AssertionError("the network was asked")

        socket.socket = socket.create_connection = socket.getaddrinfo = refuse
        from memcore.embed import StaticEmbedder

        assert StaticEmbedder().embed(["disk full"]).any()
        assert logging.getLogger().handlers == [], "a library must not configure the program's logging"
    """
    python(code)


def test_two_first_calls_at_once_load_once(monkeypatch):
    loads = []

    def slow_load():
        loads.append(threading.get_ident())
        time.sleep(0.05)  # holds the door open for the other thread
        return load()

    load = static._load
    monkeypatch.setattr(static, "_load", slow_load)
    monkeypatch.setattr(static, "_loaded", None)
    gate, rows = threading.Barrier(2), []

    def first():
        gate.wait()
        rows.append(StaticEmbedder().embed(["disk full"]))

    threads = [threading.Thread(target=first) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
    assert len(rows) == 2
    assert rows[0].tobytes() == rows[1].tobytes() == EMBEDDER.embed(["disk full"]).tobytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX")
def test_a_fork_after_use_embeds_the_same_and_says_nothing(python):
    code = """
        import os
        from memcore.embed import StaticEmbedder

        texts = [f"disk {i} full" for i in range(500)]
        before = StaticEmbedder().embed(texts)
        child = os.fork()
        if child == 0:
            same = StaticEmbedder().embed(texts + ["never seen beforehand"])[:500].tobytes() == before.tobytes()
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert "TOKENIZERS_PARALLELISM" not in os.environ
    """
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    python(code, env=environment)


PARAPHRASES = [
    # text, the same in other words, about something else
    ("the payment service timed out", "billing requests took too long", "the cat sleeps on the sofa"),
    ("she was promoted to manager", "her company gave her a better job", "it rained all night in the mountains"),
    ("the database ran out of disk space", "no storage left on the sql server", "we watched a movie with friends"),
    # Portuguese parts less well: shared little words alone give 0.2, and pairs without a word of sense in common
    # ("ficou sem memória", "faltou ram na máquina") can fall under it.
    ("o servidor ficou sem memória", "acabou a memória da máquina", "a receita leva ovos e farinha"),
    (
        "o cliente pediu o reembolso da compra",
        "o consumidor quer o dinheiro de volta",
        "o trem parte cedo para a praia",
    ),
    ("o pagamento foi recusado pelo banco", "a cobrança do cartão não passou", "choveu a noite toda na serra"),
    ("a reunião foi adiada para quinta-feira", "mudaram o encontro para outro dia", "o gato dorme no sofá da sala"),
]


@pytest.mark.parametrize(("text", "paraphrase", "unrelated"), PARAPHRASES)
def test_a_paraphrase_is_nearer_than_something_else(text, paraphrase, unrelated):
    a, b, c = EMBEDDER.embed([text, paraphrase, unrelated])
    assert a @ b > a @ c + 0.02


@pytest.mark.parametrize(
    "other",
    [
        "NÃO HÁ Conexão",
        "na\u0303o ha\u0301 conexa\u0303o",  # NFD
        "  não\r\n\thá\u00a0 conexão \n",
        "ｎão há conexão",  # full width, as NFKC folds it
    ],
)
def test_case_unicode_form_and_white_space_do_not_count(other):
    a, b = EMBEDDER.embed(["não há conexão", other])
    assert (a == b).all()


def test_accents_count():
    a, b = EMBEDDER.embed(["não há conexão", "nao ha conexao"])
    assert (a != b).any()


def test_special_tokens_in_a_text_are_characters():
    tables = static._tables()
    for special, row in (("<unk>", 0), ("<s>", 1), ("</s>", 2)):
        assert row not in tables.encode(special)
        assert len(tables.encode(special)) >= 3


def test_half_a_surrogate_is_no_word():
    a, b = EMBEDDER.embed(["disk \udc80 full", "disk full"])
    assert (a == b).all()


def test_what_stands_between_words_does_not_count():
    a, b = EMBEDDER.embed(["disk full", "“Disk”... (full)!\u200d"])
    assert (a == b).all()


def test_a_common_word_counts_less_than_a_rare_one():
    the, disk, both = EMBEDDER.embed(["the", "disk", "the disk"])
    assert both @ disk > 0.95
    assert both @ the < 0.5


@pytest.mark.parametrize("blob", ["x9" * 5_000, "".join(map(chr, np.random.default_rng(0).integers(97, 123, 9_000)))])
def test_a_blob_counts_as_one_word(blob):
    text, both = EMBEDDER.embed(["the disk is full", f"the disk is full {blob}"])
    assert both @ text > 0.8


def test_each_word_counts_however_long_the_text():
    """Blocks of tokens are added up: a million characters of two words lie where the two words lie."""
    a, b = EMBEDDER.embed(["disk full " * 100_000, "disk full"])
    assert np.abs(a - b).max() < 2e-6


USES = ["StaticEmbedder().fingerprint", "StaticEmbedder().embed(['a'])"]
MISSING = (
    "the static embedder needs the package wordllama, {how}: pip install wordllama, or pass embedder='hashed', which "
    "needs no model"
)


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need a privilege there")
@pytest.mark.parametrize("use", USES)
def test_without_wordllama_the_error_says_what_to_install(python, tmp_path, use):
    link_packages(tmp_path)
    assert fault(python, tmp_path, use) == MISSING.format(how="which is not installed")


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need a privilege there")
@pytest.mark.parametrize("use", USES)
def test_without_its_weights_the_error_names_the_file(python, tmp_path, use):
    link_packages(tmp_path)
    (tmp_path / "wordllama").mkdir()
    (tmp_path / "wordllama" / "__init__.py").touch()
    assert fault(python, tmp_path, use) == MISSING.format(
        how="whose installed version comes without l2_supercat_256.safetensors"
    )


def link_packages(folder: Path) -> None:
    """Makes `folder` a site-packages with memcore and NumPy, and without wordllama."""
    site = Path(np.__file__).parent.parent
    for entry in (Path(memcore.__file__).parent, *site.glob("numpy*")):
        (folder / entry.name).symlink_to(entry)


def fault(python: Callable[..., str], site: Path, use: str) -> str:
    """The text of the MissingExtra that `use` raises in a Python that sees only `site`."""
    code = f"""
        from memcore.embed import StaticEmbedder
        from memcore.errors import MissingExtra
        try:
            {use}
        except MissingExtra as error:
            print(error)
    """
    return python(code, options=["-S"], env={**os.environ, "PYTHONPATH": str(site)})
