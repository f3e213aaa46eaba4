"""plumb nightly under a real Slurm: nodes, suspects, and jobs without a night.
"""
from __future__ import annotations

import contextlib
import email
import email.policy
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT, ROOT, until
from test_cluster_jobs import GOLDEN, PAIR, SHORT, faulty_in

pytestmark = pytest.mark.cluster

#: On one node the program misbehaves as $FAULT says, elsewhere it does not. Every
#: rank hangs while $HANG exists, whose name is in its command line.
ONE_NODE = '''
[ "${BAD_NODE:-all}" = all -o "$BAD_NODE" = "$(hostname)" ] || FAULT=none
[ ! -e "$HANG" ] || tail -f "$HANG"
'''

#: Runs a command beside a mail server of its loopback interface, which the variable
#: PLUMBLINE_MESSAGES names: FILE for the message, command.
WITH_MAIL_SERVER = '''
import os, socket, subprocess, sys
from aiosmtpd.controller import Controller

class Handler:
    async def handle_DATA(self, server, session, envelope):
        with open(sys.argv[1], 'xb') as file:
            file.write(envelope.content)
        return '250 OK'

with socket.create_server(('127.0.0.1', 0)) as free:
    port = free.getsockname()[1]
controller = Controller(Handler(), hostname='127.0.0.1', port=port)
controller.start()
os.environ['PLUMBLINE_MESSAGES'] = (
    f'mailto://127.0.0.1:{port}?mode=insecure&from=plumb@site.org&to=ops@site.org')
code = subprocess.call(sys.argv[2:])
controller.stop()
sys.exit(code)
'''


@pytest.fixture
def site(tmp_path, cluster):
    """start(fault, options of plumb): a night of one case on two nodes."""
    # Jobs get the first nodes that are idle.
    cluster.wait_idle(cluster.nodes)
    suite = faulty_in(tmp_path)
    for path in (tmp_path / 'omb').iterdir():
        first, rest = path.read_text().split('\n', 1)
        path.write_text(f'{first}\n{ONE_NODE}{rest}')

    def start(fault, *options, bad_node='all', wrapper=(), place=tmp_path / 'site'):
        return cluster.box(
            'exec', '--', *wrapper, ROOT / 'plumb', 'nightly', '--site', place,
            '--mode', 'quick', '--bringup', '--json', tmp_path
            / 'night.json', *options, '--', '--system=devcluster:slurm-srun',
            '-p', 'mpich', *PAIR, *(SHORT if place == 'devcluster' else ()),
            cwd=tmp_path, env={
                **os.environ, **suite.variables, 'FAULT': fault,
                'BAD_NODE': bad_node, 'HANG': str(tmp_path / 'hang'),
                'GOLDEN': str(GOLDEN / 'osu_latency.txt')},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(*words, **more):
        job = start(*words, **more)
        text, _ = job.communicate(timeout=LIMIT)
        return text, job.returncode, json.loads(
            (tmp_path / 'night.json').read_text())
    suite.start, suite.run = start, run
    return suite


def test_a_drained_node_is_listed_and_not_measured(site, cluster):
    cluster.ask('scontrol', 'update', 'NodeName=n4', 'State=DRAIN',
                'Reason=disk of n4')
    try:
        text, code, nightly_session = site.run('none', place='devcluster')
    finally:
        cluster.ask('scontrol', 'update', 'NodeName=n4', 'State=RESUME')
        until(lambda: cluster.ask(
            'sinfo', '-h', '-n', 'n4', '-o', '%t').strip()
            == 'idle')
    assert code == 0, text
    [message] = nightly_session['nodes']
    assert (message['usable'], message['measured']) == (3, 2), text
    assert message['out'] == ['n4 (drained: disk of n4)']


def test_a_session_that_a_wrapper_ends_leaves_a_summary_and_no_job(
        site, cluster, tmp_path):
    """`timeout` sends a signal to its child, and then to the process group."""
    job = site.start('time_limit', wrapper=['timeout', '-s', 'SIGTERM', '1000'])
    until(lambda: re.search(r'OsuPt2pt\w+ RUNNING', cluster.ask(
        'squeue', '-h', '-o', '%j %T')))
    job.send_signal(signal.SIGTERM)
    text, _ = job.communicate(timeout=LIMIT)
    assert not cluster.ask('squeue', '-h', '-t', 'PD,R').strip(), text
    summary = json.loads((tmp_path / 'night.json').read_text())
    assert (summary['state'], summary['code']) == ('cut short', 1), text
    until(lambda: not cluster.ask('squeue', '-h').strip())


def test_jobs_that_stay_pending_end_at_the_limit(site, cluster):
    # The test case needs two nodes; its build needs one.
    other = cluster.submit('#!/bin/sh\nsleep 1000\n', '-N3', '--exclusive')
    until(lambda: cluster.job(other)['JobState'] == 'RUNNING')
    try:
        job = site.start('none', '-Smax_pending_time=30s')
        text, _ = job.communicate(timeout=LIMIT)
        assert cluster.ask('squeue', '-h', '-o', '%A').split() == [other]
    finally:
        cluster.ask('scancel', other)
        cluster.wait(other)
    assert job.returncode == 1, text
    nightly_session = json.loads((site.tmp / 'night.json').read_text())
    [failed] = nightly_session['failed']
    assert 'before it started (max_pending_time is 30 s)' in failed['why'], text
    assert nightly_session['state'] == 'failed'
    # It is not run again, which would wait as long.
    assert failed['guard'] == 'pending' and not failed['again'], text


def test_a_node_that_is_bad_is_named_in_the_mail(site):
    mail = site.tmp / 'mail'
    text, code, nightly_session = site.run(
        'exit_code', bad_node='n1',
        wrapper=[sys.executable, '-c', WITH_MAIL_SERVER, mail])
    assert code == 1, text
    [failed] = nightly_session['failed']
    assert failed['nodes'] == ['n1', 'n2'], text
    # ReFrame has measured it twice on them (--max-retries).
    assert [(one['where'], one['nodes'], one['failed'])
            for one in failed['again']] == [('other nodes', ['n3', 'n4'], False)]
    message = email.message_from_bytes(mail.read_bytes(), policy=email.policy.default)
    assert message['Subject'].startswith('plumbline: site: FAILED: 1 test case failed')
    body = message.get_body(('plain',)).get_content()
    assert ' '.join(body.split()) == ' '.join(nightly_session['text'].split())
    assert 'passed on other nodes (n3 n4)' in body


def test_a_node_that_is_lost_is_named_alone(site, cluster):
    hang = site.tmp / 'hang'
    hang.touch()
    job = site.start('none')

    def nodes_that_hang():
        return [node for node in cluster.nodes
                if any(process.name == 'tail' and str(hang) in process.command
                       for process in cluster.processes(node))]
    until(lambda: len(nodes_that_hang()) == 2, job)
    # The batch script runs on the first node.
    first, lost = nodes_that_hang()
    # ReFrame measures the test case again (--max-retries), on other nodes.
    hang.unlink()
    cluster.kill(lost)
    try:
        text, _ = job.communicate(timeout=LIMIT)
    finally:
        cluster.boot(lost)
    night = json.loads((site.tmp / 'night.json').read_text())
    [flaky] = night['failed']
    assert f'({lost} was lost)' in flaky['why'], text
    assert re.search(rf'left out: {lost} \(down', text), text


def start_until_job_runs(site, cluster):
    """A nightly session whose job does not end; the process, and the pids of plumb
    and ReFrame."""
    job = site.start('time_limit')
    until(lambda: 'OsuPt2pt RUNNING' in re.sub(
        r'rfm_(\w+?)_\w+ ', r'\1 ', cluster.ask(
            'squeue', '-h', '-o', '%j %T')))
    mark = f'PLUMBLINE_WORK={site.variables["PLUMBLINE_WORK"]}'.encode()
    pids = []
    for path in Path('/proc').glob('[0-9]*/environ'):
        with contextlib.suppress(OSError):
            words = (path.parent / 'cmdline').read_bytes()
            # The box's own command outside of the cluster has the same words.
            if mark in path.read_bytes().split(b'\0') and b'/box\0' not in words and (
                    b'\0nightly\0' in words or b'/reframe\0' in words):
                pids.append(int(path.parent.name))
    return job, pids


def test_jobs_of_a_nightly_session_that_was_killed_are_cancelled(
    site, cluster
):
    job, pids = start_until_job_runs(site, cluster)
    # Stopped first: else one of them cancels the job when another is killed.
    for number in signal.SIGSTOP, signal.SIGKILL:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    job.communicate(timeout=LIMIT)
    [orphan] = cluster.ask('squeue', '-h', '-t', 'R', '-o', '%A').split()
    text, code, nightly_session = site.run('none')
    assert code == 0, text
    assert nightly_session['notes'][-1] == (
        'cancelled Slurm jobs that a killed nightly session left: '
        f'{orphan}')
    assert not cluster.ask('squeue', '-h', '-t', 'PD,R').strip()
    assert {r['guard'] for r in site.records} == {''}
