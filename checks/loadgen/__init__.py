"""plumbload, the suite's load generator, and the parsers of load generators.

It is built from src/ on the node where it runs; see
docs/reference/families/loadgen.md.
"""
from pathlib import Path

#: build.sh OUT compiles plumbload.
BUILD = Path(__file__).resolve().parent / 'src' / 'build.sh'
