"""Fuzzing: parsers of files, requests and connections, with inputs that are nearly right.

    PYTHONPATH=src:tests .venv-test/bin/python -m support.fuzz [--inputs N] [--state FOLDER]

An input is a seed, or a text of the corpus, with a few changes. Each is run in a process of its own kind (a
worker), under limits of CPU time and memory,
and must end as one of the errors that people are meant to read, or
well. What ends in a way that was not seen before is kept and changed further. Everything else is a fault.
"""
