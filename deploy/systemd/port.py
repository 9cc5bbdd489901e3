"""Guards a port of a unit: `port.py refuse-taken 4266` before the start, `port.py await 4266` after it.

Standard library only and no package: it runs before anything of ours is known to work. Loopback, as the units listen.
"""

import os
import socket
import sys
import time

HOST = "127.0.0.1"
LIMIT_SECONDS = 90.0
"""A code server answers after 2 to 3 s on a quiet machine (measured), 20 s on a loaded one."""


def main(words: list[str]) -> str | None:
    """Do what the words say; return what went wrong, None if nothing did."""
    verbs = {"refuse-taken": refuse_taken, "await": await_listener}
    if len(words) != 2 or words[0] not in verbs or not words[1].isdecimal() or not 1 <= int(words[1]) <= 65_535:
        return f"port.py: found {' '.join(words)!r}; expected {' or '.join(verbs)}, and a port from 1 to 65535"
    return verbs[words[0]](int(words[1]))


def refuse_taken(port: int) -> str | None:
    """Return a complaint if anything listens on the port.

    Code servers bind with SO_REUSEPORT: a second one starts without an error and takes half of the calls. A plain
    bind fails beside any listener.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended do not count
        try:
            probe.bind((HOST, port))
        except OSError as problem:
            return (
                f"port {port} on {HOST} cannot be had ({problem.strerror}): something listens there, perhaps a process "
                f"left over from before. Find it with `ss -ltnp sport = :{port}` and stop it"
            )
    return None


def await_listener(port: int) -> str | None:
    """Return None once something listens; a complaint if the main process ends, or nothing does within the limit."""
    main_process = os.environ.get("MAINPID", "")
    ends_at = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < ends_at:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex((HOST, port)) == 0:
                return None
        if main_process.isdecimal() and not _lives(int(main_process)):
            return f"the main process {main_process} ended before it listened on port {port}; its log stands above"
        time.sleep(0.2)
    return f"nothing listens on port {port} after {LIMIT_SECONDS:g} s; its log stands above"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
