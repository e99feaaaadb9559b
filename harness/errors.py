"""Errors. Every message is one line: `argument=value`, the rule, what was got, what to do."""


class AssayError(Exception):
    """Base of all errors that assay raises on purpose."""


class UsageError(AssayError):
    """The caller asked for something that cannot be: unknown name, malformed file, wrong option. Exit code 2."""


class HarnessError(AssayError):
    """A fault of the harness itself, never of the implementation under test. Exit code 4."""


class NoRuleError(HarnessError):
    """The bound engine met an ATen operation that it has no error rule for; the message names it."""


class NotClaimedError(AssayError):
    """A property used an argument or feature that the implementation does not claim; the plan should have left it out."""


class NotSupportedError(AssayError):
    """The implementation raised "not implemented" for this example: it is taken out, and counted."""


class NotExercisedError(AssayError):
    """What the property speaks of cannot be observed here (costs of a kernel that hides its work): nothing was shown."""


class PathNotTakenError(NotExercisedError):
    """An implementation that stands for a path (a compiled graph, a kernel) fell back to another for this example."""


class ExampleOverError(AssayError):
    """Nothing more can be asked of this example: the decision that ends it is in the ledger already."""


class HostError(AssayError):
    """The process that runs the implementation ended or was ended: the base of crash, timeout and out-of-memory."""

    status = "crash"

    def __init__(self, message: str, *, stderr_tail: str = "") -> None:
        super().__init__(message)
        self.stderr_tail = stderr_tail


class HostCrashedError(HostError):
    """The host process died (signal, `os._exit`, `sys.exit`)."""


class HostTimeoutError(HostError):
    """One call, or the import, took longer than `--timeout`; the host was killed."""

    status = "timeout"


class HostOutOfMemoryError(HostError):
    """The implementation asked for more memory than the host may have."""

    status = "out-of-memory"
