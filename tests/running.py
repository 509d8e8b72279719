"""Scripts in processes of their own: run to the end, or held at a line until they are told to go on."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_CAPABILITIES = (1, 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root passes over permissions
_PR_CAPBSET_DROP = 24


def as_anybody() -> None:
    """For `preexec_fn`: permissions of files hold for the new process, whoever runs the tests."""
    libc = ctypes.CDLL(None)
    for capability in _CAPABILITIES:
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def run(script: str, *args: object, check: bool = True, anybody: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs a script; what it says on stderr is told if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=as_anybody if anybody else None,
    )
    assert not check or not done.returncode, done.stderr
    return done


class Held:
    """A script that says where it is with `print`, and waits with `input`."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child

    def line(self) -> str:
        """The next line that it prints."""
        assert self.child.stdout is not None
        return self.child.stdout.readline().rstrip("\n")

    def go_on(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write("\n")
        self.child.stdin.flush()

    def end(self) -> int:
        """Lets it run to its end; its exit code."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        return self.child.wait(120)


@contextmanager
def held(script: str, *args: object, anybody: bool = False) -> Iterator[Held]:
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", script, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=as_anybody if anybody else None,
    )
    try:
        yield Held(child)
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            pipe.close()
