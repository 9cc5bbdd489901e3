"""Words of a command that an operator wrote: their placeholders, how they are filled, what is wrong with them.

Running them is `command_line`'s and the node's; which placeholder an act must have is for whoever has the act.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath

_PLACEHOLDER = re.compile(r"\{[a-z]+\}")
"""Other braces stand for themselves: a Redfish body is JSON."""
_SHELLS = frozenset({
    "sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "busybox", "su", "runuser",
    "ssh", "slogin", "autossh", "sshpass", "rsh", "rexec", "rlogin", "mosh", "plink", "dbclient",
    "pdsh", "dsh", "pssh", "parallel-ssh", "parallel", "clush", "xdsh", "psh", "ansible", "salt", "salt-ssh",
})  # fmt: skip
"""Programs that hand their words to a shell, here or there. Names and addresses are safe in one, a reason is not."""


def placeholders_in(words: Sequence[str]) -> frozenset[str]:
    """Return what the words are to be filled with, braces included."""
    return frozenset(placeholder for word in words for placeholder in _PLACEHOLDER.findall(word))


def fill(word: str, filling: Mapping[str, str]) -> str:
    """Fill in one pass: what is filled in is never looked at again, so a reason may say `{gpu}`."""
    return _PLACEHOLDER.sub(lambda match: filling[match[0]], word)


def shells_in(words: Sequence[str]) -> list[str]:
    """Return the words that would hand the others to a shell.

    Every word is looked at: `sudo`, `timeout 5` and `env` run what follows them, and so do a site's own wrappers. A
    word of `env -S` holds several.
    """
    return [part for word in words for part in word.split() if PurePath(part).name.lower() in _SHELLS]


def find_word_faults(
    words: Sequence[str], *, needed: Collection[str], optional: Collection[str] = (), unsafe: Collection[str] = ()
) -> list[str]:
    """Return what is wrong with a command; of `unsafe` values none may reach a shell."""
    if isinstance(words, str) or not words:
        return [f"is {words!r}; expected a list of words, the program first"]
    used = placeholders_in(words)
    faults = [f"has {word}, which is filled with nothing" for word in sorted(used - {*needed, *optional})]
    faults += [f"must name {word} among its words" for word in sorted(set(needed) - used)]
    if _PLACEHOLDER.search(words[0]):
        faults.append(f"starts with {words[0]!r}; the program must be fixed")
    told = sorted(used & set(unsafe))
    if told:
        faults += [f"hands {', '.join(told)} to {word}, which hands it to a shell; leave it out"
                   for word in shells_in(words)]  # fmt: skip
    return faults
