"""States and exit codes as Slurm writes them -> words in capitals, exit status and signal. One cell at a time."""

import re

from ops_pipelines.frames.formats.reading import Unbelievable
from ops_pipelines.frames.formats.slurm_values import NOTHING, shown, words

STATES = words(
    "BOOT_FAIL CANCELLED COMPLETED COMPLETING CONFIGURING DEADLINE EXPIRING FAILED LAUNCH_FAILED NODE_FAIL "
    "OUT_OF_MEMORY PENDING POWER_UP_NODE PREEMPTED RECONFIG_FAIL REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING "
    "RESV_DEL_HOLD REVOKED RUNNING SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED TIMEOUT UPDATE_DB"
)
"""The states of squeue(1) and sacct(1), 20.11 to 25.11."""
_SHORT = dict(
    pair.split("=")
    for pair in words(
        "BF=BOOT_FAIL CA=CANCELLED CD=COMPLETED CF=CONFIGURING CG=COMPLETING DL=DEADLINE EX=EXPIRING F=FAILED "
        "LF=LAUNCH_FAILED NF=NODE_FAIL OOM=OUT_OF_MEMORY PD=PENDING PR=PREEMPTED R=RUNNING RD=RESV_DEL_HOLD "
        "RF=REQUEUE_FED RH=REQUEUE_HOLD RQ=REQUEUED RS=RESIZING RV=REVOKED SI=SIGNALING SE=SPECIAL_EXIT "
        "SO=STAGE_OUT ST=STOPPED S=SUSPENDED TO=TIMEOUT UD=UPDATE_DB COMPLETE=COMPLETED CANCELED=CANCELLED "
        "NODEFAIL=NODE_FAIL"
    )
)
_NUMBERED = words(
    "PENDING RUNNING SUSPENDED COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY"
)
"""The states as the database numbers them, from 0."""
ENDED = frozenset(
    words(
        "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT"
    )
)
"""An attempt in one of these is over; REQUEUED too, in accounting."""
WAITING = frozenset(["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"])
_CANCELLED_BY = re.compile(r"CANCELLED\s+by\s+(?P<who>\S+)", re.IGNORECASE)
_STATE_WORD = re.compile(r"[^\W\d_][\w+*~#!%$@^-]*(?:[ +,][\w+*-]+)*")


def read_state(text: str) -> tuple[str, str | None]:
    """Return a state in Slurm's capitals, and who cancelled in `CANCELLED by 1234`.

    A state that no version of Slurm has is kept as it is, in capitals. Raises Unbelievable if there is none.
    """
    cell = text.strip()
    cancelled = _CANCELLED_BY.fullmatch(cell)
    if cancelled:
        return "CANCELLED", cancelled["who"]
    if cell.isdecimal() and len(cell) < 12:
        # The low byte is the state, the rest are flags.
        base = int(cell) & 0xFF
        return (_NUMBERED[base], None) if base < len(_NUMBERED) else (f"STATE_{base}", None)
    word = cell.upper()
    if word.endswith("+"):
        # A column of fixed width cuts: OUT_OF_ME+, CANCELLED+.
        fitting = [state for state in STATES if state.startswith(word[:-1])]
        word = min(fitting, key=len) if fitting else word
    word = _SHORT.get(word, word)
    if not _STATE_WORD.fullmatch(word) or len(word) > 64:
        raise Unbelievable("bad_state", f"{shown(text)}; expected a state such as COMPLETED")
    return word, None


def read_exit_code(text: str) -> tuple[int, int] | None:
    """Return exit status and signal of `3:0`; None for none."""
    cell = text.strip()
    if cell.lower() in NOTHING:
        return None
    status, colon, signal = cell.partition(":")
    if not (status.isdecimal() and (not colon or signal.isdecimal())) or len(status) > 10 or len(signal) > 10:
        raise Unbelievable("bad_exit_code", f"{shown(text)}; expected exit status and signal, as 3:0")
    return int(status), int(signal or 0)


def read_wait_status(number: int) -> tuple[int, int]:
    """Return exit status and signal of a wait status: 768 is exit 3, 9 is signal 9."""
    return number >> 8 & 0xFF, number & 0x7F
