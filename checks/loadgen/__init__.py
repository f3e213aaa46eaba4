"""The embedded memtier_benchmark, and the parsers of load generators.

It is built from src/ on the node where it runs; see
docs/reference/families/keyvalue.md.
"""
from pathlib import Path

from ..core.options import SET_BY_CHECK

#: build.sh OUT compiles the embedded memtier_benchmark.
BUILD = Path(__file__).resolve().parent / 'src' / 'build.sh'

#: Its path in the folder of the programs: it has a folder of its own, which can stand
#: in PATH before that of the original.
EMBEDDED = 'embedded/memtier_benchmark'

#: Options of memtier_benchmark, and the embedded one's own, that each check sets.
RESERVED = {
    '-s --server -h --host -p --port -S --unix-socket --uri -P --protocol -a '
    '--authenticate --service --cluster-mode --select-db -o --out-file '
    '--json-out-file --print-percentiles --client-stats --key-prefix --key-minimum '
    '--key-digits --verify --on-miss --seed --data-verify --verify-only '
    '--generate-keys': SET_BY_CHECK,
    '-x --run-count': 'use the setting repetitions'}
