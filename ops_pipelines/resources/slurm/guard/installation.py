"""The start guard as the autopilot's host sees it: where its files lie, the one line of slurm.conf that names it, and
whether it works.

What the guard does once it is there is `start_guard`'s, the command is `terminal.host_commands`'s. Asking for its
status installs nothing and holds nothing.
"""

import json
import os
import pwd
import shlex
import shutil
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.sources import SourceError
from ops_pipelines.resources.commands import RunCommand
from ops_pipelines.resources.files import put_whole_bytes
from ops_pipelines.resources.slurm.guard.start_guard import Settings

# -- files and the line of slurm.conf --


WRAPPER, JUDGE, WITNESS = "start_guard.sh", "start_guard.py", "node_witness.py"
SETTINGS, ENVIRONMENT = "start_guard.json", "start_guard.env"
LIMIT_SECONDS = 9
"""After so long the wrapper gives up the judge: he asks Slurm, then the nodes for 5 s, then holds."""
PROLOG = "PrologSlurmctld"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class InstallationError(PolicyError):
    """The guard cannot be installed as asked. The message says what was found and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One guard on the host of slurmctld."""

    directory: Path
    settings: Settings
    python: Path
    next_prolog: str = ""
    """The site's own PrologSlurmctld, which runs after the guard; empty: there is none."""
    programs: Path | None = None
    """Where the clients of this Slurm lie (`scontrol`), if not where the system's do: slurmctld gives its prologs no
    PATH, and refuses clients of a version too far from its own."""

    @property
    def wrapper(self) -> Path:
        return self.directory / WRAPPER

    @property
    def scontrol(self) -> str:
        """Return by which program it asks Slurm."""
        return "scontrol" if self.programs is None else str(self.programs / "scontrol")

    def write(self) -> None:
        """Write every file, each whole; again over an older guard. Raises OSError."""
        make_way_to(self.directory)
        self.directory.mkdir(exist_ok=True)
        self.directory.chmod(0o755)
        here = Path(__file__).parent
        for name, mode in ((JUDGE, 0o644), (WITNESS, 0o644), (WRAPPER, 0o755)):
            self._put(name, (here / name).read_bytes(), mode=mode)
        self._put(SETTINGS, (json.dumps(_as_json(self.settings), indent=1) + "\n").encode(), mode=0o644)
        self._put(ENVIRONMENT, self._environment().encode(), mode=0o644)

    def _environment(self) -> str:
        words = {
            "STATE": str(self.settings.state),
            "FALLBACK": str(self.settings.fallback),
            "PYTHON": str(self.python),
            "LIMIT_SECONDS": str(LIMIT_SECONDS),
            "NEXT": self.next_prolog,
            "SLURM_CONF": self.settings.slurm_conf,
            "PATH": _PATH if self.programs is None else f"{self.programs}:{_PATH}",
        }
        return "".join(f"{name}={shlex.quote(word)}\n" for name, word in words.items())

    def _put(self, name: str, content: bytes, *, mode: int) -> None:
        put_whole_bytes(self.directory / name, content, mode=mode)

    def hindrance_of(self, account: pwd.struct_passwd) -> str:
        """Return why a user cannot run this guard, by the mode bits of its files; empty if they let it."""
        needed = [(self.wrapper, 0o5), (self.python, 0o1)]
        needed += [(self.directory / name, 0o4) for name in (JUDGE, SETTINGS, ENVIRONMENT)]
        needed += [(self.programs / "scontrol", 0o1)] if self.programs is not None else []
        needed += [(self.settings.addresses, 0o4)] if self.settings.addresses is not None else []
        try:
            for file, bits in needed:
                real = file.resolve(strict=True)
                for path, asked in (*((above, 0o1) for above in reversed(real.parents)), (real, bits)):
                    if not _may(account, path.stat(), asked):
                        mode = path.stat().st_mode & 0o7777
                        return f"user {account.pw_name} cannot use {file}: {path} has mode {mode:04o}"
        except OSError as problem:
            return f"user {account.pw_name} cannot use the guard: {problem}"
        return ""


def make_way_to(directory: Path) -> None:
    """Make what is missing above a directory such that every user may pass, whatever root's umask. Raises OSError."""
    for missing in [each for each in reversed(directory.parents) if not each.exists()]:
        missing.mkdir()
        missing.chmod(0o755)


def _may(account: pwd.struct_passwd, found: os.stat_result, asked: int) -> bool:
    """Return whether a user has the rights `asked` (4 read, 1 execute), by mode bits as the kernel reads them."""
    if account.pw_uid == 0:
        return asked & 0o1 == 0 or stat.S_ISDIR(found.st_mode) or found.st_mode & 0o111 != 0
    if account.pw_uid == found.st_uid:
        return found.st_mode >> 6 & asked == asked
    if found.st_gid in os.getgrouplist(account.pw_name, account.pw_gid):
        return found.st_mode >> 3 & asked == asked
    return found.st_mode & asked == asked


def _as_json(settings: Settings) -> dict[str, object]:
    return {
        "state": str(settings.state),
        "fallback": str(settings.fallback),
        "slurm_conf": settings.slurm_conf,
        "port": settings.port,
        "addresses": None if settings.addresses is None else str(settings.addresses),
        "power_state": list(settings.power_state),
        "munge_socket": settings.munge_socket,
        "ask_seconds": settings.ask_seconds,
        "look_again_seconds": settings.look_again_seconds,
        "needs_boot_after": settings.needs_boot_after,
    }


def next_prolog_of(directory: Path) -> str:
    """Return the site's own prolog behind the guard that lies in `directory`; empty if there is none."""
    try:
        text = (directory / ENVIRONMENT).read_text()
    except OSError:
        return ""
    named = (line.partition("=")[2] for line in text.splitlines() if line.startswith("NEXT="))
    return "".join(shlex.split(next(named, "")))


def slurm_programs() -> Path | None:
    """Return where the `scontrol` lies that is run by name; None if there is none, or it is the system's."""
    found = shutil.which("scontrol")
    directory = None if found is None else Path(found).absolute().parent
    return None if directory is None or str(directory) in _PATH.split(":") else directory


def own_python() -> Path:
    """Return the interpreter beneath our environment: the guard outlives the environment."""
    return Path(getattr(sys, "_base_executable", sys.executable) or sys.executable).resolve()


def prolog_of(slurm_conf: str) -> str:
    """Return the PrologSlurmctld that a slurm.conf names; empty if it names none."""
    found = ""
    for line in slurm_conf.splitlines():
        key, _, word = line.partition("#")[0].strip().partition("=")
        if key.strip().lower() == PROLOG.lower():
            found = word.strip().strip('"')
    return found


def with_prolog(slurm_conf: str, program: str) -> str:
    """Return a slurm.conf that names `program` and nothing else as PrologSlurmctld; empty: none."""
    kept = [
        line
        for line in slurm_conf.splitlines()
        if line.partition("#")[0].strip().partition("=")[0].strip().lower() != PROLOG.lower()
    ]
    return "\n".join([*kept, *([f"{PROLOG}={program}"] if program else [])]) + "\n"


def change_slurm_conf(path: Path, program: str) -> Path | None:
    """Let slurm.conf name `program`; return where the file before is kept, None if nothing had to change.

    Raises InstallationError where the file cannot be changed, with the line to write by hand.
    """
    try:
        before = path.read_bytes()
        text = before.decode()
        if prolog_of(text) == program:
            return None
        kept = path.with_name(f"{path.name}.before-start-guard")
        put_whole_bytes(kept, before)
        shutil.copystat(path, kept)
        owner = path.stat()
        put_whole_bytes(path, with_prolog(text, program).encode())
        path.chmod(owner.st_mode & 0o7777)
        os.chown(path, owner.st_uid, owner.st_gid)
    except (OSError, UnicodeDecodeError) as problem:
        line = f"{PROLOG}={program}" if program else f"no line {PROLOG}"
        raise InstallationError(f"{path} cannot be changed ({problem}); write into it by hand: {line}") from problem
    return kept


# -- whether it works --


_LIMIT_SECONDS = 4.0
"""Below the limit of one method of the scheduler: the guard asks slurmctld, munge and its disk."""
_ENDS_WITH = (0, 3)
"""What `status` ends with: all is well, or not."""


class GuardStatus:
    """Asks the guard that slurmctld names."""

    def __init__(self, command: Sequence[str], *, run: RunCommand) -> None:
        """`command` prints its status; empty: the guard lies on this host, and says so itself."""
        self._command, self._run = tuple(command), run

    def problem_of(self, prolog: str) -> str:
        """Return why the guard at `prolog` cannot be relied on; empty if it can."""
        if not self._command and not Path(prolog).is_file():
            return (
                f"{prolog} is not on this host; name in cluster.yaml, as scheduler.guard_status, a command that prints "
                f"`{prolog} status` of the host of slurmctld"
            )
        argv = self._command or (prolog, "status")
        try:
            answer = self._run(argv, environment=dict(os.environ), timeout_seconds=_LIMIT_SECONDS)
            if answer.returncode not in _ENDS_WITH:
                said = " / ".join((answer.stderr + answer.stdout).split("\n"))[:200]
                return f"{' '.join(argv)} ended with {answer.returncode}: {said}"
            told = json.loads(answer.stdout)
            if told["is_well"] is True:
                return ""
            return "; ".join(str(each) for each in told["problems"])[:500] or "the guard says that it is not well"
        except SourceError as problem:
            return f"the guard does not answer: {problem}"
        except (ValueError, KeyError, TypeError):
            return f"{' '.join(argv)} printed no status; run it by hand"
