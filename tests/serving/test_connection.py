"""Who is believed: the handshake, its messages, the door, the secrets."""
from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import select
import selectors
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from checks.services import listener, private, service, wire
from checks.services.agent import (
    Failed,
    Rendezvous,
    connect_to_conductor,
    create_data_folder,
    read_rendezvous_file,
)
from checks.services.listener import Listener
from checks.services.plan import (
    Clients,
    Plan,
    PlanError,
    Program,
    Server,
    Step,
)
from checks.services.wire import (
    AGENT,
    CONDUCTOR,
    MAC,
    MAGIC,
    NONCE,
    AuthenticationError,
    Channel,
    Handshake,
)
from tests import impostor
from tests.conftest import LIMIT, ROOT, of_family, until

SECRET, RUN = b's' * 32, 'run.1 7'


def root_only():
    if os.geteuid():
        pytest.skip('only root can be another user')


def agreed(conductor, agent):
    """A whole handshake; what each side said."""
    first = agent.opening_message()
    second = conductor.answer_to_peer(first)
    third = agent.answer_to_peer(second)
    assert conductor.answer_to_peer(third) == b''
    return first, second, third


def pair():
    """Channels of a conductor and an agent that have met, and what is
    between them."""
    conductor, agent = (Handshake(role, SECRET, RUN)
                        for role in (CONDUCTOR, AGENT))
    agreed(conductor, agent)
    (left, wire1), (wire2, right) = socket.socketpair(), socket.socketpair()
    for sock in (wire1, wire2):
        sock.setblocking(False)
    return (Channel(left, *conductor.keys), Channel(right, *agent.keys),
            wire1, wire2)


# The handshake -------------------------------------------------------------

def test_both_sides_agree_on_keys_of_their_own():
    conductor, agent = (Handshake(role, SECRET, RUN)
                        for role in (CONDUCTOR, AGENT))
    output = b''.join(agreed(conductor, agent))
    assert conductor.keys == agent.keys[::-1]
    assert len({*conductor.keys, *agent.keys}) == 2
    assert conductor.wants == agent.wants == 0
    for hidden in (SECRET, *conductor.keys):
        assert hidden not in output and hidden.hex().encode() not in output


@pytest.mark.parametrize('secret, run', [
    (b'x' * 32, RUN), (SECRET, 'run.1 8'), (b'', RUN)])
def test_who_has_another_secret_or_run_is_an_impostor(secret, run):
    agent = Handshake(AGENT, SECRET, RUN)
    second = Handshake(CONDUCTOR, secret, run).answer_to_peer(agent.opening_message())
    with pytest.raises(AuthenticationError, match='does not know'):
        agent.answer_to_peer(second)
    conductor = Handshake(CONDUCTOR, SECRET, RUN)
    other = Handshake(AGENT, secret, run)
    other.nonces = (
        other.nonce,
        conductor.answer_to_peer(other.opening_message())[:NONCE],
    )
    with pytest.raises(AuthenticationError, match='does not know'):
        conductor.answer_to_peer(other._compute_proof(AGENT))


def test_what_was_recorded_or_reflected_proves_nothing():
    first, second, third = agreed(*(Handshake(role, SECRET, RUN)
                                    for role in (CONDUCTOR, AGENT)))
    agent = Handshake(AGENT, SECRET, RUN)
    agent.opening_message()
    with pytest.raises(AuthenticationError):
        agent.answer_to_peer(second)                        # of another session
    conductor = Handshake(CONDUCTOR, SECRET, RUN)
    live = conductor.answer_to_peer(first)
    with pytest.raises(AuthenticationError):
        conductor.answer_to_peer(third)
    # The conductor's proof, sent back to it as the agent's.
    conductor = Handshake(CONDUCTOR, SECRET, RUN)
    live = conductor.answer_to_peer(MAGIC + b'n' * NONCE)
    with pytest.raises(AuthenticationError):
        conductor.answer_to_peer(live[NONCE:])
    # Two conductors against each other, or two agents.
    one = Handshake(CONDUCTOR, SECRET, RUN)
    other = Handshake(CONDUCTOR, SECRET, RUN)
    output = one.answer_to_peer(MAGIC + b'n' * NONCE)
    other.answer_to_peer(MAGIC + output[:NONCE])
    with pytest.raises(AuthenticationError):
        other.answer_to_peer(output[NONCE:])
    agent = Handshake(AGENT, SECRET, RUN)
    with pytest.raises(AuthenticationError):
        agent.answer_to_peer(agent.opening_message()[-NONCE:] + third)


def test_every_bit_of_a_proof_counts():
    for bit in range(8 * MAC):
        agent = Handshake(AGENT, SECRET, RUN)
        output = bytearray(Handshake(CONDUCTOR, SECRET, RUN).answer_to_peer(
            agent.opening_message()))
        output[NONCE + bit // 8] ^= 1 << bit % 8
        with pytest.raises(AuthenticationError):
            agent.answer_to_peer(bytes(output))


# Messages ------------------------------------------------------------------

def test_messages_arrive_in_their_order():
    conductor, agent, wire1, wire2 = pair()
    for n in range(3):
        conductor.send(n=n)
    data = wire1.recv(9999)
    for at in range(0, len(data), 7):
        wire2.send(data[at:at + 7])
    results = []
    while len(results) < 3:
        results += agent.receive_messages()
    assert [one['n'] for one in results] == [0, 1, 2]


def two_frames():
    conductor, agent, wire1, wire2 = pair()
    conductor.send(n=1)
    first = wire1.recv(9999)
    conductor.send(n=2)
    return agent, wire2, first, wire1.recv(9999)


@pytest.mark.parametrize('spoil', [
    lambda one, two: one + one,                                 # repeated
    lambda one, two: two,                                       # dropped
    lambda one, two: two + one,                                 # swapped
    lambda one, two: one[:-1] + b'3',                           # changed
    lambda one, two: one[:4] + b'\0' * MAC + one[4 + MAC:],     # made up
    lambda one, two: struct.pack('!I', len(one) - 4 - MAC - 1)  # shortened
    + one[4:],
    lambda one, two: struct.pack('!I', wire.MAX_MESSAGE + 1) + one[4:],
    lambda one, two: b'\xff' * 40])
def test_a_frame_that_is_not_the_next_ends_the_connection(spoil):
    agent, wire2, one, two = two_frames()
    wire2.send(spoil(one, two))
    assert agent.receive_messages() is None and 'sent a message' in agent.fault
    wire2.send(two)
    assert agent.receive_messages() is None                     # and for good


def test_a_frame_sent_back_or_of_another_session_is_refused():
    conductor, agent, wire1, wire2 = pair()
    agent.send(type='hello')
    output = wire2.recv(9999)
    wire2.send(output)
    assert agent.receive_messages() is None and agent.fault
    other, _, wire1, _ = pair()
    wire1.send(output)
    assert other.receive_messages() is None and other.fault


def test_a_frame_that_was_cut_is_no_message():
    agent, wire2, one, _ = two_frames()
    wire2.send(one[:-1])
    assert agent.receive_messages() == []
    wire2.close()
    assert agent.receive_messages() is None
    assert agent.fault == 'closed the connection'


def test_who_drips_is_silent(monkeypatch):
    agent, wire2, one, _ = two_frames()
    agent._heard -= 100
    wire2.send(one[:10])
    assert agent.receive_messages() == [] and agent.peer_silence_seconds() > 99
    wire2.send(one[10:])
    assert agent.receive_messages() == [{'n': 1}] and agent.peer_silence_seconds() < 1


def test_who_takes_nothing_is_silent():
    conductor, agent, wire1, wire2 = pair()
    conductor.send(text='x' * 900_000)
    conductor._taken -= 100
    assert conductor.peer_silence_seconds() > 99

# Heartbeats ------------------------------------------------------------------

def test_heartbeats_do_not_wait_for_the_main_thread(monkeypatch):
    """The main thread of the agent does nothing at all."""
    monkeypatch.setattr(wire, 'HEARTBEAT_INTERVAL', 0.01)
    conductor, agent, wire1, wire2 = pair()
    wire.Heartbeat().add_channel(agent)
    results = []
    while len(results) < 3:
        select.select([wire2], [], [])
        wire1.setblocking(True)
        wire1.send(wire2.recv(4096))
        results += conductor.receive_messages()
    assert results[:3] == [{'type': 'beat'}] * 3


def test_two_threads_send_whole_messages(monkeypatch):
    monkeypatch.setattr(wire, 'HEARTBEAT_INTERVAL', 0)
    conductor, agent, wire1, wire2 = pair()
    wire.Heartbeat().add_channel(agent)
    wire1.setblocking(True)
    results, sent = [], 0
    while len([one for one in results if 'n' in one]) < 200:
        if sent < 200:
            agent.send(n=sent)
            sent += 1
        select.select([wire2], [], [])
        wire1.send(wire2.recv(4096))
        got = conductor.receive_messages()
        assert got is not None, conductor.fault
        results += got
    assert [one['n'] for one in results if 'n' in one] == list(range(200))
    agent.sock.close()


def test_a_closed_channel_gets_no_heartbeat(monkeypatch):
    monkeypatch.setattr(wire, 'HEARTBEAT_INTERVAL', 0.01)
    _, agent, *_ = pair()
    _, other, *_ = pair()
    heartbeat = wire.Heartbeat()
    heartbeat.add_channel(agent)
    agent.sock.close()
    sent = agent._sent
    heartbeat.add_channel(other)
    until(lambda: other._sent > 3)
    assert heartbeat._channels == (other,) and agent._sent <= sent + 1


def test_a_busy_conductor_is_not_lost(tmp_path, monkeypatch):
    """A conductor that does something else for longer than the limit: its
    agent stays, and it finds what the agent sent meanwhile."""
    monkeypatch.setattr(wire, 'HEARTBEAT_INTERVAL', 0.01)
    conductor, agent, wire1, wire2 = pair()
    for wire_ in (wire1, wire2):
        wire_.setblocking(True)
    for one in (conductor, agent):
        wire.Heartbeat().add_channel(one)
    carried = threading.Thread(target=carry, args=(wire1, wire2), daemon=True)
    carried.start()
    conductor._heard -= 100
    until(lambda: agent.receive_messages() and agent.peer_silence_seconds() < 50)
    until(lambda: conductor.receive_messages()
          and conductor.peer_silence_seconds() < 50)


def carry(left, right):
    """Carries bytes both ways until one end is closed."""
    ends = {left: right, right: left}
    while True:
        for one in select.select([*ends], [], [])[0]:
            data = one.recv(65536)
            if not data:
                return
            ends[one].sendall(data)


@pytest.mark.parametrize('limit', [0, 1, -5, 'long', None, float('nan'),
                                   float('inf')])
def test_a_limit_of_a_site_that_is_none(limit):
    plan = Plan(Server('none', ('true',)), (Clients(),), ())
    with pytest.raises(PlanError, match='service_heartbeat_timeout is'):
        plan.with_site_values('', '', heartbeat_timeout=limit)
    assert plan.with_site_values('', '').heartbeat_timeout == 30
    assert plan.with_site_values('', '', heartbeat_timeout=45).heartbeat_timeout == 45


# The door ------------------------------------------------------------------

class Door(threading.Thread):
    """A conductor's door that is served, and who has come in."""

    def __init__(self):
        super().__init__(daemon=True)
        self.selector = selectors.DefaultSelector()
        self.listener = Listener('127.0.0.1', SECRET, RUN, self.selector)
        self.told = Rendezvous(self.listener.where, RUN, SECRET)
        self.come, self.maximum, self.over = [], 0, False

    def run(self):
        while not self.over:
            self.selector.select(0.1)
            self.come += self.listener.accept_authenticated_channels()
            self.maximum = max(self.maximum, len(self.listener.peers))

    def close(self):
        self.over = True
        self.join()
        self.listener.close()
        self.selector.close()


@pytest.fixture
def door():
    one = Door()
    one.start()
    yield one
    one.close()


def is_closed(sock):
    """Whether the other side has closed a connection that says nothing."""
    return bool(select.select([sock], [], [], 0)[0])


def silent(where, count):
    """Connections that say nothing."""
    results = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            results.append(socket.create_connection(where, 5))
    return results


def test_agents_come_in_through_a_crowd(door):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2500:
        pytest.skip(f'{hard} open files at most')
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2500), hard))
    try:
        crowd = silent(door.told.address, 2000)
        channel = connect_to_conductor(door.told, lambda: None)
        channel.send(type='hello')
        until(lambda: door.come)
        assert (
            len(crowd) == 2000 and door.maximum <= listener.MAX_UNAUTHENTICATED
        )
        for one in crowd:
            one.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_who_drips_has_one_deadline(door, monkeypatch):
    monkeypatch.setattr(listener, 'HANDSHAKE_TIMEOUT', 1.0)
    with socket.create_connection(door.told.address) as sock, \
            pytest.raises(OSError):
        for byte in MAGIC + b'n' * NONCE:
            sock.send(bytes([byte]))
            time.sleep(0.1)
    assert not door.come


def test_too_many_of_one_address_do_not_displace_others(monkeypatch):
    monkeypatch.setattr(listener, 'HANDSHAKE_TIMEOUT', 600.0)
    door = Door()
    first = silent(door.told.address, 1)
    with socket.socket() as other:
        other.bind(('127.0.0.2', 0))
        other.connect(door.told.address)
        until(lambda: door.listener.accept_authenticated_channels()
              or len(door.listener.peers) == 2)
        crowd = silent(door.told.address, 100)
        until(lambda: door.listener.accept_authenticated_channels()
              or len(door.listener.peers) == listener.MAX_UNAUTHENTICATED)
        same = [*first, *crowd]
        until(lambda: door.listener.accept_authenticated_channels() or sum(
            map(is_closed, same)) > len(same) - listener.MAX_UNAUTHENTICATED)
        assert '127.0.0.2' in {p.address for p in door.listener.peers}
    for one in first + crowd:
        one.close()
    door.listener.close()


def test_without_free_descriptors_it_goes_on(door):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    subset = silent(door.told.address, 3)
    until(lambda: len(door.listener.peers) == 3)
    try:
        # Connections that are open, and then no descriptor is free.
        waiting = socket.socket()
        top = max(map(int, os.listdir('/proc/self/fd')))
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, hard))
        descriptors = []
        with contextlib.suppress(OSError):
            while True:
                descriptors.append(os.open(os.devnull, os.O_RDONLY))
        waiting.connect(door.told.address)
        time.sleep(0.5)
        assert door.is_alive()
        for fd in descriptors:
            os.close(fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    connect_to_conductor(door.told, lambda: None).send(type='hello')
    until(lambda: door.come)
    for one in (*subset, waiting):
        one.close()


def test_an_agent_that_was_crowded_out_comes_again(door):
    dropped = dropping(door.listener)
    connect_to_conductor(door.told, lambda: None).send(type='hello')
    until(lambda: door.come)
    assert dropped


def dropping(listener):
    """Of a listener that ends the first two who come."""
    dropped, accept = [], listener.accept_connection

    def once():
        accepted = accept()
        if accepted and len(dropped) < 2:
            dropped.append(listener.peers[-1])
            listener.drop_peer(listener.peers[-1])
        return accepted

    listener.accept_connection = once
    return dropped


def test_an_agent_does_not_wait_for_ever(monkeypatch):
    from checks.services import agent
    monkeypatch.setattr(listener, 'HANDSHAKE_TIMEOUT', 0.6)
    monkeypatch.setattr(agent, 'RECONNECT_TIMEOUT', 1.0)
    with socket.create_server(('127.0.0.1', 0)) as mute:
        to = Rendezvous(mute.getsockname(), RUN, SECRET)
        with pytest.raises(Failed, match='the handshake did not end in'):
            connect_to_conductor(to, lambda: None)


def test_a_run_is_good_through_a_crowd_and_impostors(tmp_path):
    """Two thousand silent connections, one that drips, and agents that are
    none, before the real ones come."""
    gate = tmp_path / 'gate'
    batch = impostor.start(tmp_path, gate, seconds=0.2)
    address = impostor.address_in(tmp_path)
    crowd = subprocess.Popen([sys.executable, '-c', f'''
import resource, socket, time
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [socket.create_connection({address!r}) for _ in range(2000)]
print(len(held), flush=True)
drip = socket.create_connection({address!r})
try:
    while True:
        drip.send(b'p')
        time.sleep(0.5)
except OSError:
    time.sleep(60)
'''], stdout=subprocess.PIPE, text=True)
    fakes = threading.Thread(target=impostor.play_agent, args=(address, 2.0))
    fakes.start()
    try:
        assert crowd.stdout and crowd.stdout.readline() == '2000\n'
        gate.touch()
        assert batch.wait(LIMIT) == 0, (tmp_path / 'err').read_text()
    finally:
        crowd.kill()
        crowd.wait()
        crowd.stdout.close()
        fakes.join()
    assert not list(tmp_path.glob('*.private'))


def test_nobody_can_knock_once_all_agents_are_there(tmp_path):
    batch = impostor.start(tmp_path, 0, seconds=3)
    address = impostor.address_in(tmp_path)
    until(lambda: list(tmp_path.glob('run.measure.0.out')))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    assert batch.wait(LIMIT) == 0


def test_the_password_is_not_on_the_wire(tmp_path):
    """Nothing that passes between conductor and agent tells a secret."""
    messages = []
    with socket.create_server(('127.0.0.1', 0)) as relay:
        folder = tmp_path / 'service.json.private'

        def eavesdrop():
            real = impostor.address_in(tmp_path)
            to = json.loads((folder / 'conductor').read_text())
            to['address'] = relay.getsockname()
            (tmp_path / 'relayed').symlink_to('service.json')
            (tmp_path / 'relayed.private').mkdir(mode=0o700)
            copy = tmp_path / 'relayed.private' / 'conductor'
            copy.touch(mode=0o600)
            copy.write_text(json.dumps(to))
            messages.append(to['secret'])
            ours, _ = relay.accept()
            theirs = socket.create_connection(real)
            with selectors.DefaultSelector() as both:
                both.register(ours, selectors.EVENT_READ, theirs)
                both.register(theirs, selectors.EVENT_READ, ours)
                while True:
                    for key, _ in both.select():
                        data = key.fileobj.recv(65536)
                        if not data:
                            ours.close()
                            theirs.close()
                            return
                        messages.append(data)
                        key.data.sendall(data)

        thread = threading.Thread(target=eavesdrop)
        thread.start()
        assert impostor.start(tmp_path, 1, agents='relayed').wait(LIMIT) == 0
        thread.join(20)
    secret, output = messages[0], b''.join(messages[1:])
    assert b'"instances"' in output                   # it did pass here
    password = wire.derive_secret(bytes.fromhex(secret), 'password')
    # The server has it.
    assert password in (tmp_path / 'run.server0.log').read_text()
    for word in (secret.encode(), bytes.fromhex(secret), password.encode()):
        assert word not in output


# Impostors -----------------------------------------------------------------

@pytest.mark.parametrize('attack', list(impostor.ATTACKS))
def test_who_takes_the_port_of_a_dead_conductor_is_not_obeyed(attack):
    root_only()
    # Not tmp_path, which only we can enter: he marks there what he did.
    with tempfile.TemporaryDirectory(prefix='plumbimpostor') as folder:
        one = impostor.play(Path(folder), attack, random.Random(attack))
    assert one.taken and one.met, one
    assert not one.obeyed and not one.left, one
    assert "does not know the run's secret" in one.output, one


def test_a_server_of_another_user_is_not_told_the_password(tmp_path):
    """He takes the port between the agent's look and the server's bind."""
    root_only()
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]
    messages = Path(tempfile.mkstemp(prefix='plumbimpostor')[1])
    messages.chmod(0o666)

    def serve():
        with socket.create_server(('127.0.0.1', port)) as server:
            server.settimeout(LIMIT)
            while True:
                connection, _ = server.accept()
                with messages.open('ab') as file:
                    file.write(connection.recv(1000))
                connection.sendall(b'+OK\r\n+PONG\r\n')

    Plan(Server('late', ('sh', '-c', 'touch {data}/../started; sleep 30'),
                dialect='resp', port=port, ready_limit=10.0),
         (Clients(),), (Step('measure', (Program(('true',)),), 10),),
         scratch=str(tmp_path)).write(tmp_path / 'service.json')
    run = impostor.conducted(tmp_path, 0)
    until(lambda: list(tmp_path.rglob('started')))
    thief = impostor.as_another_user(serve)
    try:
        assert run.wait(LIMIT) == 1
    finally:
        os.kill(thief, signal.SIGKILL)
        os.waitpid(thief, 0)
    assert 'another user listens on this port' in (
        tmp_path / 'err').read_text()
    assert messages.read_bytes() == b''
    messages.unlink()


# The folder of secrets -------------------------------------------------------

def folder_of(tmp_path):
    return tmp_path / 'service.json.private'


def test_secrets_are_for_nobody_else(tmp_path):
    old = os.umask(0)
    try:
        secrets = private.Secrets(folder_of(tmp_path))
        path = secrets.write_file('service', 'password x')
    finally:
        os.umask(old)
    assert stat.S_IMODE(secrets.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert private.read_secret_file(secrets.folder, 'service') == 'password x'
    secrets.write_file('service', 'another')              # written again, whole
    assert private.read_secret_file(secrets.folder, 'service') == 'another'
    secrets.remove()
    assert not secrets.folder.exists()


def test_a_folder_that_was_prepared_is_refused(tmp_path):
    folder = folder_of(tmp_path)
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(private.NotPrivate, match='mode 777.*another user'):
        private.Secrets(folder)
    folder.rmdir()
    (tmp_path / 'elsewhere').mkdir(mode=0o700)
    folder.symlink_to(tmp_path / 'elsewhere')
    with pytest.raises(private.NotPrivate, match='not a folder'):
        private.Secrets(folder)
    assert not list((tmp_path / 'elsewhere').iterdir())


def test_a_run_refuses_a_prepared_folder(tmp_path):
    folder_of(tmp_path).mkdir()
    folder_of(tmp_path).chmod(0o777)
    assert impostor.start(tmp_path, 0).wait(LIMIT) == 1
    lines = (tmp_path / 'err').read_text().splitlines()
    (line,) = [line for line in lines if line.startswith('service: ')]
    assert 'with mode 777' in line and 'remove it' in line
    assert not list(folder_of(tmp_path).iterdir())


def test_a_folder_of_another_user_is_refused(tmp_path):
    root_only()
    folder = folder_of(tmp_path)
    folder.mkdir(mode=0o700)
    secret = folder / 'conductor'
    secret.touch(mode=0o600)
    secret.write_text(Rendezvous(
        ('127.0.0.1', 1), RUN, SECRET).to_json())
    os.chown(folder, impostor.UID, impostor.UID)
    with pytest.raises(private.NotPrivate, match=f'user {impostor.UID}'):
        private.Secrets(folder)
    with pytest.raises(Failed, match='another user created it'):
        read_rendezvous_file(folder, lambda: None)
    os.chown(folder, 0, 0)
    os.chown(secret, impostor.UID, impostor.UID)
    with pytest.raises(Failed, match='another user created it'):
        read_rendezvous_file(folder, lambda: None)
    private.remove_secret_folder(folder)
    assert not folder.exists()


def test_a_file_that_was_prepared_is_not_followed(tmp_path):
    secrets = private.Secrets(folder_of(tmp_path))
    target = tmp_path / 'target'
    for name in ('service', 'service.part'):
        (secrets.folder / name).symlink_to(target)
    secrets.write_file('service', 'password x')
    assert not target.exists()
    (secrets.folder / 'conductor').symlink_to(secrets.folder / 'service')
    with pytest.raises(OSError):
        private.read_secret_file(secrets.folder)


def test_a_place_that_everybody_can_write_is_refused(tmp_path):
    stage = tmp_path / 'open' / 'stage'
    stage.mkdir(parents=True)
    stage.parent.chmod(0o777)
    with pytest.raises(private.NotPrivate, match='chmod o-w'):
        private.Secrets(folder_of(stage))
    stage.parent.chmod(0o1777)
    private.Secrets(folder_of(stage)).remove()


# What dead runs left -------------------------------------------------------

def killed(folder):
    """A folder whose owner was killed at once."""
    program = subprocess.Popen([sys.executable, '-c', f'''
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from checks.services import private
kept = private.Secrets(Path({str(folder)!r}))
kept.write_file('service', 'password x')
print('there', flush=True)
time.sleep(60)
'''], stdout=subprocess.PIPE, text=True)
    assert program.stdout and program.stdout.readline() == 'there\n'
    return program


def end(program):
    program.kill()
    program.wait()
    program.stdout.close()


def test_only_a_dead_runs_secrets_make_way(tmp_path):
    folder = folder_of(tmp_path)
    program = killed(folder)
    with pytest.raises(private.NotPrivate, match='another run may be active'):
        private.Secrets(folder)
    assert (folder / 'service').exists()
    end(program)
    secrets = private.Secrets(folder)
    assert not (folder / 'service').exists()
    secrets.remove()


def test_of_another_node_nothing_is_certain_but_age(tmp_path):
    folder = folder_of(tmp_path)
    end(killed(folder))
    lock = folder / private.LOCK
    lock.write_text('another')
    assert not private.remove_if_owner_dead(folder)
    old = time.time() - private.STALE_AFTER - 10
    os.utime(lock, (old, old))
    assert private.remove_if_owner_dead(folder) and not folder.exists()


def test_a_live_owner_touches_its_folder(tmp_path):
    secrets = private.Secrets(folder_of(tmp_path))
    lock = secrets.folder / private.LOCK
    os.utime(lock, (1, 1))
    secrets.touch_lock_file()
    assert lock.stat().st_mtime == 1                # not each time
    secrets._next = 0
    secrets.touch_lock_file()
    assert time.time() - lock.stat().st_mtime < 60


@pytest.mark.parametrize('session', ['first', 'second'])
def test_the_next_run_removes_the_secrets_of_any_dead_one(tmp_path, session):
    """In the stage directories of this session, and of one before it."""
    prefix = tmp_path / session
    stages = [tmp_path / 'first/system/part/env' / name
              for name in ('dead', 'alive', 'empty')]
    for stage in stages:
        stage.mkdir(parents=True)
    end(killed(folder_of(stages[0])))
    alive = killed(folder_of(stages[1]))
    try:
        service.remove_secrets_of_dead_runs(str(prefix))
        assert not folder_of(stages[0]).exists()
        assert folder_of(stages[1]).exists()
    finally:
        end(alive)
    service.remove_secrets_of_dead_runs(str(prefix))
    assert folder_of(stages[1]).exists()            # a process searches only once
    service.remove_secrets_of_dead_runs.cache_clear()
    service.remove_secrets_of_dead_runs(str(prefix))
    assert not folder_of(stages[1]).exists()


def test_all_killed_at_once_and_another_case_comes(suite, store):
    """Through ReFrame: batch script, conductor and agent, all at once."""
    def case(operation, seconds):
        return suite.start(
            '-r', *of_family('keyvalue'), '-Sbringup=1',
            f'-SStoreServes.duration={seconds}', '-n', 'StoreServes',
            '-p', f'^{store.environ}$', '-E',
            f'str(scenario) == "{store.name} {operation}"',
            TMPDIR=str(suite.tmp))

    first = case('get', 60)
    until(lambda: list(suite.tmp.rglob('run.1.measure.0.out')), first)
    victims = [path for path in Path('/proc').glob('[0-9]*')
               if in_stage(path, suite.tmp)]
    assert len(victims) > 4
    # Stopped first: who is killed last would see the others go, and tidy up.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(victim.name), number)
    first.communicate()
    (secret,) = suite.tmp.rglob('*.private')
    assert (secret / 'service').exists()
    second = case('set', 1)
    text, _ = second.communicate()
    assert second.returncode == 0, text
    assert not list(suite.tmp.rglob('*.private'))
    assert not list(suite.tmp.glob('plumbline-agent-*'))


def in_stage(process, folder):
    """Whether a process works in a stage directory, or in an agent's."""
    try:
        where = os.readlink(process / 'cwd')
    except OSError:
        return False
    return where.startswith(str(folder)) and where != str(folder)


def test_data_of_a_live_agent_elsewhere_is_left_alone(tmp_path):
    """On a shared scratch a lock may tell nothing of another node."""
    left = create_data_folder(str(tmp_path))
    os.close(left._lock)
    (left.folder / private.LOCK).write_text('another')
    other = create_data_folder(str(tmp_path))
    assert left.folder.exists() and other.folder.exists()
    (left.folder / private.LOCK).write_text(private.read_boot_id())
    create_data_folder(str(tmp_path))
    assert not left.folder.exists() and other.folder.exists()


def test_the_data_of_another_user_is_left_alone(tmp_path):
    root_only()
    left = create_data_folder(str(tmp_path))
    os.close(left._lock)
    os.chown(left.folder, impostor.UID, impostor.UID)
    create_data_folder(str(tmp_path))
    assert left.folder.exists()
