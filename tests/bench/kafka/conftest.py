"""Doctests are looked for in every module; these two run in the peers' environment and can't be imported here."""

collect_ignore = ["bare_loop.py", "bytewax_flow.py"]
