#!/usr/bin/env python3
"""Are the parts of the embedded Optcast as good as plain ones?

    bench/optcast_parts.py [--rounds 5]

Each against a yardstick in the same run, in turn, medians:

reduce     reduce.c against a plain loop over the same four arrays, compiled
           with the same options: B/s of one core; at least 0.9
transport  what a ring of two clients, and two clients with a server, move
           over loopback, sent and received, against iperf3: B for a second
           of CPU; at least 0.8. iperf3's block stays in the cache; arrays
           that do not are compared with a plain loop over such arrays, too
ring       the ring against MPI_Allreduce over TCP (the embedded OSU program,
           Open MPI's btl tcp) with the same ranks: time at 16 MiB

Exit status 0 where the first two reach that, 1 where one does not, 2 where
something needed is missing.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import resource
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / 'checks' / 'optcast' / 'src'
COMMON = ROOT / 'checks' / 'lib' / 'src' / 'common'
OSU = ROOT / 'checks' / 'osu' / 'src'
FLAGS = ['-O3', '-std=gnu11', '-pthread']

REDUCE = r'''
#include "optcast.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
__attribute__((target_clones("avx512f", "avx2", "default"), noinline))
static void plain(float *restrict out, const float *restrict a,
                  const float *restrict b, const float *restrict c,
                  const float *restrict d, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] + b[i] + c[i] + d[i];
}
int main(int argc, char **argv)
{
    size_t n = atol(argv[1]);
    int rounds = atoi(argv[2]);
    float *out = get(n * 4);
    const void *in[4];
    for (int k = 0; k < 4; k++) {
        float *a = get(n * 4);
        for (size_t i = 0; i < n; i++)
            a[i] = (i + k) % 7;
        in[k] = a;
    }
    for (int r = 0; r < 2 * rounds; r++) {
        double start = now();
        for (int again = 0; again < 8; again++)
            if (r % 2)
                reduce(F32, out, in, 4, n);
            else
                plain(out, in[0], in[1], in[2], in[3], n);
        printf("%d %.6e\n", r % 2, 8 * 5.0 * n * 4 / (now() - start));
    }
    /* As a ring adds: what came lies in the cache, the own numbers do not. */
    size_t chunk = 128 << 10;
    clock_t begin = clock();
    int often = n > 1 << 20 ? 8 : 4000;
    for (int again = 0; again < often; again++)
        for (size_t at = 0; at + chunk <= n; at += chunk) {
            const void *two[] = {in[0], (const float *)in[1] + at};
            reduce(F32, out + at, two, 2, chunk);
        }
    printf("2 %.6e\n", (double)often * n * 4 / (clock() - begin)
           * CLOCKS_PER_SEC);
    return argc < 0 ? out[0] : 0;
}
'''

#: An array of SIZE sent in blocks of 512 KiB, and received into another one:
#: what copying alone costs. Both processes print their CPU seconds.
PLAIN = r'''
#define _GNU_SOURCE
#include "optcast.h"
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    enum { BLOCK = 512 << 10 };
    size_t size = atol(argv[1]), total = atol(argv[2]);
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    char where[32];
    int listener = listen_at("127.0.0.1", "0", 0);
    getsockname(listener, (void *)&at, &length);
    snprintf(where, sizeof where, "127.0.0.1:%u", ntohs(at.sin_port));
    bool sends = fork() == 0;
    int fd = sends ? connect_to(where, 10)
                   : accept(listener, NULL, NULL);
    char *array = get(size);
    clock_t begin = clock();
    for (size_t at = 0; at < total; at += BLOCK)
        if (!(sends ? write_whole(fd, array + at % size, BLOCK)
                    : read_whole(fd, array + at % size, BLOCK)))
            fail("%s", "the connection is gone");
    printf("%.6f\n", (double)(clock() - begin) / CLOCKS_PER_SEC);
    return argc < 0;
}
'''


class Setup(Exception):
    """Something needed is not there; exit 2."""


def run(words: list[object], **more: object) -> str:
    done = subprocess.run([str(word) for word in words], text=True,
                          capture_output=True, **more)     # type: ignore
    if done.returncode:
        raise Setup(f'{Path(str(words[0])).name} ended with '
                    f'{done.returncode}: {done.stderr.strip()[-300:]}')
    return done.stdout


def free_port() -> int:
    with socket.create_server(('127.0.0.1', 0)) as one:
        return one.getsockname()[1]


def reduction(folder: Path, rounds: int) -> tuple[bool, dict[str, float]]:
    """B/s of one core, arrays in no cache and in L2; also B of a sum for a
    second of CPU where a ring adds, of arrays of 1M and of 64M."""
    (folder / 'bench.c').write_text(REDUCE)
    run(['cc', *FLAGS, f'-I{SRC}', '-o', folder / 'bench',
         folder / 'bench.c', *COMMON.glob('*.c'),
         *(SRC / f'{name}.c' for name in ('reduce', 'util', 'trace')), '-lm'])
    good = True
    for elements, where in ((4 << 20, 'memory'), (8 << 10, 'L2')):
        found: dict[str, list[float]] = {'0': [], '1': []}
        for line in run([folder / 'bench', elements, 4 * rounds]
                        ).splitlines():
            kind, rate = line.split()
            found.setdefault(kind, []).append(float(rate))
        plain, ours = (statistics.median(found[k]) for k in '01')
        good &= ours >= 0.9 * plain
        print(f'| reduce, four arrays in {where} | {ours / 1e9:.2f} GB/s | '
              f'plain loop {plain / 1e9:.2f} GB/s | {ours / plain:.2f} |')
    added = {size: float(run([folder / 'bench', elements, 1]).split()[-1])
             for size, elements in (('1M', 256 << 10), ('64M', 16 << 20))}
    return good, added


def children() -> float:
    """CPU seconds of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def all_reduces(folder: Path, size: str, n: int, ring: bool
                ) -> tuple[float, float]:
    """CPU seconds of two clients and a server, us of one all-reduce."""
    port = free_port()
    secret = f'password {secrets.token_hex(8)}\n'
    service = folder / 'service'
    service.write_text(f'server 127.0.0.1 {port}\n{secret}')
    server = subprocess.Popen(
        [folder / 'optcast', '--port', str(port), '--nrank', '2',
         '--count', '131072'], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, text=True)
    assert server.stdin
    server.stdin.write(secret)
    server.stdin.close()
    time.sleep(0.2)
    before = children()
    clients = [subprocess.Popen(
        [folder / 'optcast', '--client', *['--ring'] * ring, '--rank',
         str(rank), '--nrank', '2', '--service', service, '--size', size,
         '-n', str(n), '-w', '1'], stdout=subprocess.PIPE, text=True)
        for rank in range(2)]
    said = [one.communicate(timeout=300)[0] for one in clients]
    server.kill()
    server.wait()
    if any(one.returncode for one in clients):
        raise Setup('the all-reduces failed')
    row = re.search(r'^ +(\d+) +\d+ +float .*?(\d+\.\d+) +\S+ +\S+ +0$',
                    said[0], re.M)
    assert row
    return children() - before, float(row[2])


def iperf3() -> float:
    """B for a second of CPU of both ends; block of 512 KiB."""
    port = free_port()
    server = subprocess.Popen(['iperf3', '-s', '-1', '-p', str(port)],
                              stdout=subprocess.DEVNULL)
    time.sleep(0.3)
    before = children()
    said = json.loads(run(['iperf3', '-c', '127.0.0.1', '-p', port, '-t', '2',
                           '-J', '-l', '512K']))
    server.wait()
    return said['end']['sum_received']['bytes'] / (children() - before)


def plain(folder: Path, size: int) -> float:
    """The same of the plain loop over arrays of `size`."""
    total = 4 << 30
    return total / sum(map(float, run(
        [folder / 'plain', size, total]).split()))


#: What is compared: name, size, all-reduces (few, many), a ring, and how much
#: of a size is moved and added in an all-reduce of two clients.
MOVED = (('a ring, 1 MiB', '1M', 50, 1650, True, 2, 1),
         ('a server, 1 MiB', '1M', 50, 850, False, 4, 1),
         ('a ring, 64 MiB', '64M', 2, 27, True, 2, 1),
         ('a server, 64 MiB', '64M', 2, 14, False, 4, 1))


def transport(folder: Path, rounds: int, added: dict[str, float]) -> bool:
    """B for a second of CPU, of senders and receivers together.

    What all-reduces spend besides is taken off: filling, a warm-up and
    comparing (measured with few of them), and the sums (at the rate that was
    measured for them).
    """
    if not shutil.which('iperf3'):
        raise Setup('no iperf3: install it')
    (folder / 'plain.c').write_text(PLAIN)
    run(['cc', *FLAGS, f'-I{SRC}', '-o', folder / 'plain',
         folder / 'plain.c', *COMMON.glob('*.c'),
         *(SRC / f'{name}.c' for name in ('net', 'util', 'trace', 'sha256')),
         '-lm'])
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, measured in (
                ('iperf3', iperf3()), ('plain 512K', plain(folder, 512 << 10)),
                ('plain 64M', plain(folder, 64 << 20))):
            found.setdefault(name, []).append(measured)
        for name, size, few, many, ring, moves, adds in MOVED:
            cpu = [all_reduces(folder, size, n, ring)[0] for n in (few, many)]
            one = (int(size[:-1]) << 20) * (many - few)
            rest = cpu[1] - cpu[0] - adds * one / added[size]
            found.setdefault(name, []).append(moves * one / max(1e-3, rest))
    rate = {name: statistics.median(of) for name, of in found.items()}
    for name, size, *_ in MOVED:
        beside = ('; plain loop over such arrays '
                  f'{rate["plain 64M"] / 1e9:.2f} GB, '
                  f'{rate[name] / rate["plain 64M"]:.2f}'
                  if size == '64M' else '')
        print(f'| transport, {name}, a second of CPU | {rate[name] / 1e9:.2f} '
              f'GB | iperf3 {rate["iperf3"] / 1e9:.2f} GB{beside} | '
              f'{rate[name] / rate["iperf3"]:.2f} |')
    for size in ('512K', '64M'):
        print(f'| a plain loop over arrays of {size} | '
              f'{rate[f"plain {size}"] / 1e9:.2f} GB | iperf3 '
              f'{rate["iperf3"] / 1e9:.2f} GB | '
              f'{rate[f"plain {size}"] / rate["iperf3"]:.2f} |')
    return rate[MOVED[0][0]] >= 0.8 * rate['iperf3']


def against_mpi(folder: Path, rounds: int) -> None:
    """Time of 16 MiB, two ranks."""
    launcher = shutil.which('mpirun.openmpi') or shutil.which('mpirun')
    compiler = shutil.which('mpicc.openmpi') or shutil.which('mpicc')
    if not launcher or not compiler:
        print('| ring | not measured: no MPI | | |')
        return
    run([compiler, '-O2', '-std=gnu11', '-pthread', '-o', folder / 'osu',
         *sorted(OSU.glob('*.c')), '-lm'])
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(all_reduces(folder, '16M', 8, True)[1])
        said = run([launcher, '--allow-run-as-root', '--oversubscribe',
                    '--bind-to', 'none', '-np', '2', '--mca', 'btl',
                    'tcp,self', '--mca', 'pml', 'ob1', folder / 'osu',
                    'osu_allreduce', '-m', '16777216:16777216', '-i', '8',
                    '-x', '2'], env={
                        **os.environ, 'OMPI_MCA_btl_tcp_if_include': 'lo',
                        'OMPI_MCA_mpi_yield_when_idle': '1'})
        rows = re.findall(r'^16777216\s+(\d+\.\d+)', said, re.M)
        if not rows:
            raise Setup(f'osu_allreduce said {said[-200:]}')
        theirs.append(float(rows[0]))
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(f'| ring, 2 ranks, 16 MiB | {mine / 1e3:.1f} ms | MPI_Allreduce '
          f'over TCP {other / 1e3:.1f} ms | {other / mine:.2f} |')


def main() -> int:
    args = argparse.ArgumentParser(
        description=__doc__.partition('\n')[0])
    args.add_argument('--rounds', type=int, default=5)
    rounds = args.parse_args().rounds
    folder = Path(tempfile.mkdtemp(prefix='plumbline-optcast.'))
    try:
        run([SRC / 'build.sh', folder / 'optcast'])
        print('| part | ours | yardstick | ratio |\n|---|---|---|---|')
        good, added = reduction(folder, rounds)
        good &= transport(folder, rounds, added)
        against_mpi(folder, rounds)
        print(f'\nload {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs')
        return 0 if good else 1
    except (Setup, OSError, subprocess.TimeoutExpired) as err:
        print(f'optcast_parts.py: {err}', file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
