"""Hands words to the lab's hardware, and its answer on: what ssh is to a real node, and starts in milliseconds like it.

`python -I -S ask_hardware.py SOCKET inspect gpu003`. Started as a file: it imports nothing of this package.
"""

import json
import socket
import sys

NO_ANSWER = 255
"""As ssh ends where nobody answers."""


def main() -> int:
    """Ask, print what came and return its exit code; 255 where nobody answers."""
    path, *words = sys.argv[1:]
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
            link.sendall(json.dumps(words).encode())
            link.shutdown(socket.SHUT_WR)
            answer = json.load(link.makefile("r"))
    except (OSError, ValueError) as problem:
        print(f"the lab's hardware does not answer: {problem}", file=sys.stderr)
        return NO_ANSWER
    sys.stdout.write(answer["out"])
    sys.stderr.write(answer["err"])
    return int(answer["code"])


if __name__ == "__main__":
    sys.exit(main())
