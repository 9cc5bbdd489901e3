"""Reads what a child process prints, up to a limit of time and of bytes: a program that prints without an end must not
take the memory of whoever asked it. What an end means, and killing the child, is for the caller.
"""

import os
import selectors
import subprocess
import time

_AT_ONCE_BYTES = 65_536


class TooMuchOutput(RuntimeError):
    """A program printed more than it may; what it had printed is dropped."""


def read_to_end(process: subprocess.Popen[bytes], *, timeout_seconds: float, limit_bytes: int) -> tuple[bytes, bytes]:
    """Return what a process with two pipes printed until it ended.

    Raises TooMuchOutput beyond `limit_bytes` of both together, and subprocess.TimeoutExpired if it has not ended in
    time. In both cases it still runs.
    """
    assert process.stdout is not None, "both are pipes"
    assert process.stderr is not None, "both are pipes"
    until = time.monotonic() + timeout_seconds
    texts = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for pipe in texts:
            selector.register(pipe, selectors.EVENT_READ, data=pipe)
        while selector.get_map():
            for key, _ in selector.select(_left(process, until, timeout_seconds)):
                # Past the buffer: a read of a pipe that has something returns at once, whatever a slow writer does.
                piece = os.read(key.fd, _AT_ONCE_BYTES)
                if not piece:
                    selector.unregister(key.fileobj)
                texts[key.data] += piece
            if sum(map(len, texts.values())) > limit_bytes:
                raise TooMuchOutput(f"more than {limit_bytes} bytes")
    process.wait(timeout=_left(process, until, timeout_seconds))
    return bytes(texts[process.stdout]), bytes(texts[process.stderr])


def _left(process: subprocess.Popen[bytes], until: float, timeout_seconds: float) -> float:
    """Return the seconds that are left; raise subprocess.TimeoutExpired if there are none."""
    left = until - time.monotonic()
    if left <= 0.0:
        raise subprocess.TimeoutExpired(process.args, timeout_seconds)
    return left
