"""The embedded memtier_benchmark, and the parsers of load generators.

It is built from src/ on the node where it runs; see
docs/reference/families/keyvalue.md.
"""
from pathlib import Path

#: build.sh OUT compiles the embedded memtier_benchmark.
BUILD = Path(__file__).resolve().parent / 'src' / 'build.sh'

#: Its path in the folder of the programs: it has a folder of its own, which can stand
#: in PATH before that of the original.
EMBEDDED = 'embedded/memtier_benchmark'
