"""What a port raises when the system behind it does not do what was asked.

SourceError               a system that we asked
├── SourceUnavailable     it did not answer: whether a command took effect is unknown
├── SourceRefused         it answered no: the command took no effect
└── SourceNonsense        it answered something that cannot be believed; nothing was taken from it
"""


class SourceError(RuntimeError):
    """A system that we asked did not do what was asked. The message says which, what it said, and what to check."""


class SourceUnavailable(SourceError):
    """No answer within the limit, or the command could not be started. Whether it took effect is unknown."""


class SourceRefused(SourceError):
    """The system answered no. Nothing changed there."""


class SourceNonsense(SourceError):
    """The answer could not be believed (unparsable, or a shape never seen). Nothing was taken from it."""
