"""Every code block of the README runs, in order, and prints what the README says."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_every_block_says_what_it_is():
    assert {language for language, _ in BLOCKS} == {"bash", "python", "text"}


def test_python_blocks_print_the_text_that_follows_them():
    names: dict = {}
    compared = 0
    for place, (language, code) in enumerate(BLOCKS):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"README block {place}", "exec"), names)
        after = BLOCKS[place + 1] if place + 1 < len(BLOCKS) else ("", "")
        if after[0] == "text":
            assert printed.getvalue() == after[1]
            compared += 1
        else:
            assert printed.getvalue() == ""
    assert compared == sum(language == "text" for language, _ in BLOCKS)


def test_memcore_commands_run(tmp_path):
    commands = [
        shlex.split(line, comments=True)
        for language, code in BLOCKS
        if language == "bash"
        for line in code.splitlines()
        if line.startswith("memcore ")
    ]
    assert len(commands) >= 6
    binary = Path(sys.executable).parent / "memcore"
    outputs = [
        subprocess.run(
            [binary, *command[1:]], cwd=tmp_path, check=True, capture_output=True, text=True, encoding="utf-8"
        )
        for command in commands
    ]
    assert "HTTP 504 on /billing" in outputs[1].stdout
    assert (tmp_path / "report.md").read_text(encoding="utf-8").startswith("# memcore replay")
    assert (tmp_path / "answers.jsonl").stat().st_size > 0


def test_make_targets_exist_and_come_first():
    first = BLOCKS[0]
    assert first[0] == "bash"
    targets = re.findall(r"^make (\S+)", first[1], re.MULTILINE)
    assert targets == ["replay", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in [*targets, *re.findall(r"`make (\S+?)`", README)]:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
