"""C parsers of untrusted input, under a fuzzer for a few seconds each.

The targets in tests/fuzz link the programs' own sources; the README there
says how to run them for longer. A seed determines a run: failures reproduce.
"""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import LIMIT, ROOT

FUZZ = ROOT / 'tests' / 'fuzz'
TARGETS = ('replies', 'probe', 'files', 'tao', 'ai')


@pytest.fixture(scope='module')
def built(tmp_path_factory) -> dict[str, Path]:
    """Name of a target -> its program, under ASan and UBSan."""
    folder = tmp_path_factory.mktemp('fuzz')
    (folder / 'none.c').write_text('int main(void) { return 0; }\n')
    done = subprocess.run(
        ['cc', '-fsanitize=address,undefined', '-o', folder / 'none',
         folder / 'none.c'], capture_output=True, text=True)
    if done.returncode or subprocess.run([folder / 'none']).returncode:
        pytest.skip('cc has no -fsanitize=address,undefined here: '
                    + (done.stderr.splitlines() or ['it does not run'])[-1])
    made = {}
    for name in TARGETS:
        # Compilation takes longer than what is run here.
        done = subprocess.run([FUZZ / 'build.sh', name, folder / name],
                              capture_output=True, text=True,
                              env={**os.environ, 'CFLAGS': '-O0'})
        assert done.returncode == 0, done.stderr
        made[name] = folder / name
    return made


def fuzz(program: Path, target: str, *seeds: Path, seed: int = 1,
         seconds: float = 3, runs: int = 10000
         ) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, str(seed), str(seconds), str(runs),
         FUZZ / f'{target}.dict', *seeds], text=True, timeout=LIMIT,
        errors='replace', capture_output=True,
        env={**os.environ, 'ASAN_OPTIONS': 'detect_leaks=0'})


@pytest.mark.strict
@pytest.mark.parametrize('target', TARGETS)
def test_a_reader_bears_what_is_not_its_protocol(built, target):
    seeds = sorted((FUZZ / 'corpus' / target).iterdir())
    done = fuzz(built[target], target, *seeds)
    assert done.returncode == 0, done.stderr[-3000:]
    count = int(done.stderr.split(' runs')[0])
    assert count >= len(seeds), 'the corpus alone takes longer'


def test_the_fuzzer_finds_what_is_wrong(tmp_path):
    """A reader that believes a length: found in a second, and told."""
    (tmp_path / 'bad.c').write_text('''
#include <stdint.h>
#include <stddef.h>
int LLVMFuzzerInitialize(int *c, char ***v) { (void)c; (void)v; return 0; }
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return size && data[0] < 40 && data[data[0]] == 77 ? -1 : 0;
}
''')
    (tmp_path / 'seed').write_bytes(b'\3abc')
    done = subprocess.run(
        ['cc', '-g', '-fsanitize=address', '-o', tmp_path / 'bad',
         tmp_path / 'bad.c', FUZZ / 'mutate.c'], capture_output=True,
        text=True)
    if done.returncode:
        pytest.skip('cc has no -fsanitize=address here')
    done = fuzz(tmp_path / 'bad', 'tao', tmp_path / 'seed')
    assert done.returncode and 'heap-buffer-overflow' in done.stderr
    assert 'FUZZ: input ' in done.stderr
