"""What a Java stack trace says, in a line."""


def causes_in(trace: str) -> list[str]:
    r"""What each `Caused by` line of a trace names, the outermost first.

    >>> causes_in("java.lang.RuntimeException: outer\n\tat x\nCaused by: java.io.IOException: disk full\n\tat y")
    ['java.io.IOException: disk full']
    """
    return [line.removeprefix("Caused by: ") for line in trace.splitlines() if line.startswith("Caused by: ")]


def innermost_cause(trace: str) -> str:
    r"""The last cause, else the trace's first line; empty where there is none.

    >>> innermost_cause("java.lang.RuntimeException: alone\n\tat x"), innermost_cause("")
    ('java.lang.RuntimeException: alone', '')
    """
    return ([*trace.splitlines()[:1], *causes_in(trace)] or [""])[-1].strip()
