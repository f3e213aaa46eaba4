"""A bench ends what it started, whatever ends the bench."""
from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, python_script, until

from checks.machine.processes import is_alive

#: Stands for a store: accepts connections.
SERVER = python_script('''import socket, sys
words = sys.argv
port = words[words.index('--port') + 1]
with socket.create_server(('127.0.0.1', int(port))) as server:
    while True:
        server.accept()[0].close()
''')

#: Starts the server of a bench, prints its pid and waits.
BENCH = '''
import sys, time
from types import SimpleNamespace
import common
import store_load
path = sys.argv[1]
args = SimpleNamespace(redis_server=path, memcached='', tao_server='')
common.exit_cleanly_on_signals()
with store_load.keep_store_server_running(args, 'redis', None) as server:
    print(server.pid, flush=True)
    time.sleep(600)
'''


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_bench_that_is_ended_leaves_no_server(tmp_path, number):
    path = tmp_path / 'server'
    path.write_text(SERVER)
    path.chmod(0o755)
    with subprocess.Popen(
            [sys.executable, '-c', BENCH, path], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path,
            env={**os.environ, 'PYTHONPATH': str(ROOT / 'bench')}) as bench:
        assert bench.stdout
        server = int(bench.stdout.readline())
        try:
            assert is_alive(server)
            bench.send_signal(number)
            bench.wait()
            until(lambda: not is_alive(server))
        finally:
            if is_alive(server):
                os.kill(server, signal.SIGKILL)
