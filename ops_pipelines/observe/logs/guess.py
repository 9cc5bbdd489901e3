"""A log line that no row names -> a guess: by its own level, its subsystem, and its words.

A guess says that it is one (`GUESSED`), and is never stronger than a look. What speaks of no fault, of success, or
calls itself information is nothing to do. How often guesses are right is counted by `bench.classify`.
"""

import re
from typing import NamedTuple

from ops_pipelines.core.fault import FirstAction

GUESSED = "guessed"
"""The category of lines of which only the subsystem and the words were judged."""
UNKNOWN_WITH_FAULT_WORDS = ("unknown", "unknown", (FirstAction.MONITOR, FirstAction.NONE), 0.2)
UNKNOWN_WITHOUT = ("unknown", "none", (FirstAction.NONE, FirstAction.MONITOR), 0.5)
_GUESS_CONFIDENCE = 0.4

_FAULT_WORDS = re.compile(
    rb"(?i)\b(?:error|errors|err|fail|fails|failed|failure|failures|failing|fatal|panic|critical|exception|corrupt\w*"
    rb"|fault|faulty|abort|aborted|aborting|segfault|oops|timeout|timeouts|timed out|unreachable|refused|denied"
    rb"|degraded|emerg|alert|lost|unable|cannot|can't|couldn't|could not|hung|stuck|broken|uncorrect\w*|killed"
    rb"|not responding|mismatch\w*|exceed\w*|overflow|crash\w*|dead|dropped|invalid|missing|unhealthy|not found"
    rb"|no such|expired|rejected|stale|unexpected\w*|unrecover\w*|incompatible|halted|hang|down|alarm|violation"
    rb"|backtrace|traceback|leak\w*|disconnected|offline)\b|\b\w{3,40}(?:Error|Exception|Timeout)\b"
    rb"|\[(?:WRN|ERR)\]|\bERR \w{2,12}[#:]|(?:^|[ \]])[EF]\d{4} \d\d:\d\d:\d\d|\d: [EF] \w{2,20}/"
)
"""Words of trouble, and the levels that stand for them: of Ceph, SONiC, glog and TensorFlow."""
_WARNING_LEVEL = re.compile(
    rb"(?i:\b(?:level|severity|lvl)[\"']?[=:] ?[\"']?warn(?:ing)?\b)"
    rb"|(?:^|[ \]|:])[\[<(]?(?:WARN|WARNING|Warning|WRN)[\]>):]"
    rb"|(?:^|[ \]])W\d{4} \d\d:\d\d:\d\d|\[W\d{0,6} |\d: W \w{2,20}/"
)
"""What its program calls a warning is watched before anything else."""
_CALM_LEVEL = re.compile(
    rb"(?i:\b(?:level|severity|lvl)[\"']?[=:] ?[\"']?(?:info|debug|trace)\b)"
    rb"|(?:^|[ \]|:])[\[<(]?(?:INFO|DEBUG|TRACE|debug[1-5])[\]>)]?(?:[ :|]|$)"
    rb"|(?:^|[ \]])I\d{4} \d\d:\d\d:\d\d|\[I\d{0,6} |NCCL INFO "
)
"""A program that gives its line a level knows best: what it calls information is no trouble."""
_CALM_WORDS = re.compile(
    rb"(?i)(?<![:.\d])\b(?:no|0|zero|without) (?:\w+ ){0,3}(?:errors?|failures?|faults?|problems?)\b"
    rb"|\b(?:errors?|failures?|faults?|failed)[\"']?[ =:]{1,3}(?:0|none|false)\b(?! of)"
    rb"|(?<!not )\bsuccess\w*|[1-9]\d* succeeded"
    rb"|\b(?:is|are|now|has been|been) (?:enabled|available|restored|healthy|online|recovered|up)\b"
    rb"|\b(?:initiali[sz]ed|registered|loaded|enabled)\.?$|\bPASS(?:ED)?\b"
    rb"|\berror (?:handling|reporting|correction|injection|decoding|logging|collector)\b"
    rb"|\bignor(?:e|ed|ing)\b|context cancell?ed"
    rb"|most recent call|asynchronously reported|Exception (?:raised from|ignored)|no longer exists"
)
_NEGATED = re.compile(
    rb"(?i)\b(?:not|cannot|can't|couldn't|never)(?: yet| be| been| was)? "
    rb"(?:recover|success|enabl|availab|restor|loaded)"
)
"""Words of success that a line denies."""


class _Guess(NamedTuple):
    """What a line of one subsystem that speaks of trouble is taken for."""

    component: str
    words: re.Pattern[bytes]
    actions: tuple[FirstAction, ...]


def _guess(component: str, words: bytes, *actions: FirstAction) -> _Guess:
    return _Guess(component, re.compile(words), actions)


GUESSES = (
    _guess(
        "storage",
        rb"Lustre|LNet|ptlrpc|ldlm|(?i:\bnfsd?[:4]|\bNFS\b|\brpc\.|\bsunrpc|\bmmfs|\bgpfs|\bbeegfs|\bwekafs|\bweka|\blibceph|\bceph"
        rb"|\brbd\d|\bcvmfs|\bs3fs|\bgoofys|\bautomount)"
        rb"|\bnfs4?_|\bnvme\d+: (?:rdma|tcp|fc)\b|\biscsid?\b|\bmultipathd?\b|log_channel\(cluster\)"
        rb"|\b(?:mon|osd|mds|mgr)\.[\w-]+ [(\[]",
        FirstAction.INVESTIGATE_STORAGE,
        FirstAction.MONITOR,
    ),
    _guess(
        "scheduler",
        rb"\b(?:slurm\w*|srun|sbatch|salloc|sacct\w*|munged?|pmixp_\w+|pyxis|enroot|pbs_\w+|job-(?:exec|manager)|qsub|bsub)\b"
        rb"|^\[20\d\d-\d\d-\d\dT[\d:.]{8,15}\] (?:error|fatal): ",
        FirstAction.FIX_SOFTWARE,
        FirstAction.MONITOR,
    ),
    _guess(
        "fabric",
        rb"\bmlx[45]_|\bib_(?:core|ipoib|cm|srp|uverbs)|\brdma_|\bib\d"
        rb"|\b(?:swss|syncd|bgp|teamd|pmon|lldp)\d?#|\bsharp_am|\b(?:__)?osm_|\bBGP\b|\bBIRD\b"
        rb"|(?i:opensm|infiniband|\bibdiag|\bufm\b|NET/IB|\bswitch\b.{0,40}\bport\b)",
        FirstAction.INVESTIGATE_FABRIC,
        FirstAction.MONITOR,
    ),
    _guess(
        "container",
        rb"(?i:\bkubelet|\bcontainerd|\bdockerd|\bcri-?o\b|\brunc\b|nvidia-container|nvidia-ctk|device.plugin"
        rb"|gpu-operator|\bkube|dcgm|nv-hostengine)|^time=\"20",
        FirstAction.FIX_SOFTWARE,
        FirstAction.MONITOR,
    ),
    _guess(
        "host",
        rb"\b(?:systemd|sssd|nslcd|chronyd|ntpd|sshd|crond|CRON|rsyslogd|dbus-daemon|NetworkManager|dhclient)(?:\[|:)",
        FirstAction.FIX_SOFTWARE,
        FirstAction.MONITOR,
    ),
    _guess(
        "application",
        rb"\b\w{3,40}(?:Error|Exception)\b(?::|$)|Traceback|terminate called|core dumped|\bAssertion|\btorch"
        rb"|\bjax|\btensorflow|\bpython",
        FirstAction.FIX_APP,
        FirstAction.RESTART_JOB,
        FirstAction.MONITOR,
    ),
    # No subsystem that we know wrote it: what it speaks of is the next best.
    _guess(
        "storage",
        rb"(?i)\bmount|\bvolume|file ?system|\bbucket|\bdisk\b|read data|cannot open file|\bnvmf"
        rb"|\b(?:minio|gluster|juicefs|ganesha|mfs)\w*",
        FirstAction.INVESTIGATE_STORAGE,
        FirstAction.MONITOR,
    ),
    _guess(
        "network",
        rb"(?i)i/o timeout|unreachable|adjacency|no route|endpoint|\bping\b|heartbeat|\blink\b|\bpeer\b"
        rb"|\binterface\b|resolve|hostname|\bdns\b|socket",
        FirstAction.INVESTIGATE_FABRIC,
        FirstAction.MONITOR,
    ),
    _guess(
        "host",
        rb"(?i)not found|no such|permission|denied|invalid|misconfig|unsupported|not supported|library|\bmodule\b"
        rb"|refused|unauthori[sz]ed|credential|certificate|config|init(?:iali[sz])?\w*|version|missing|exited"
        rb"|\bpanic\b|unavailable|driver|license|\bAPI\b",
        FirstAction.FIX_SOFTWARE,
        FirstAction.MONITOR,
    ),
    _guess(
        "hardware",
        rb"NVRM|\bnvidia|\bamdgpu|\bkfd|\bnvme\d|\bsd[a-z]{1,2}\b|\bata\d|\bEDAC|\bmce:|Hardware Error|\bpcieport"
        rb"|\bAER\b|\bDMAR|\bEXT4-fs|\bXFS\b|\bBTRFS|\bipmi|\bACPI\b|\bkernel: |^\[ *\d+\.\d+\]",
        FirstAction.MONITOR,
        FirstAction.NONE,
    ),
)
"""In the order in which they are asked. None is stronger than a look: a guess takes no node out of service."""


def guess_of(text: bytes) -> tuple[str, str, tuple[FirstAction, ...], float]:
    """Return the verdict on a line that no row names, by its level, its subsystem and its words."""
    is_calm = _CALM_LEVEL.search(text) or (_CALM_WORDS.search(text) and not _NEGATED.search(text))
    if is_calm or not _FAULT_WORDS.search(text):
        return UNKNOWN_WITHOUT
    for each in GUESSES:
        if each.words.search(text):
            first = (FirstAction.MONITOR,) if _WARNING_LEVEL.search(text) else ()
            return GUESSED, each.component, tuple(dict.fromkeys((*first, *each.actions))), _GUESS_CONFIDENCE
    return UNKNOWN_WITH_FAULT_WORDS
