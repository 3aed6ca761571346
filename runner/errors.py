"""What the runner says when it cannot do its job: one line, one exit code."""


class LivekvError(Exception):
    """A refusal with a remedy: printed as one line, and the program exits with `exit_code`."""

    exit_code = 1


class UsageError(LivekvError):
    """The request itself cannot be met: an unknown name, an impossible combination."""

    exit_code = 2


class EnvironmentProblem(LivekvError):
    """The machine lacks something: a compiler, a device, disk space, a network."""

    exit_code = 3


class Interrupted(LivekvError):
    """Ctrl-C, or a request to terminate; what was finished is on disk and can be resumed."""

    exit_code = 130


class RunAborted(LivekvError):
    """A run ended before its last block; what was finished is on disk and can be resumed."""

    exit_code = 4
