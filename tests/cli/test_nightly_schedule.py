"""plumb nightly schedule: what is printed starts a session, with its variables."""
from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml
from conftest import skip_missing

from cli import __main__
from cli.nightly import timers
from cli.setup.venv import SetupError
from config import variables


def scheduled(kind: str, *words: str) -> str:
    args = __main__.parse_command_line(['nightly', 'schedule', kind, *words])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert __main__.import_command_function(args)(args) == 0
    return out.getvalue()


#: Options, with letters that a shell, cron or systemd would read as their own.
MANY = ['--site', 'lumi', '--bringup', '--mode', 'full',
        '--hours', '9.5', '--json', "/srv/it's a/50%.json", '--', '-n', 'Osu$']


@pytest.fixture
def shell(monkeypatch, tmp_path):
    """The variables of a shell in which a person runs the suite."""
    for one in variables.VARIABLES:
        monkeypatch.delenv(one.name, raising=False)
    own = {
        'PATH': '/opt/a b/bin:/usr/bin:/bin', 'SPACK_ROOT': '/opt/100% $spack',
        'SBATCH_ACCOUNT': 'geo', 'PLUMBLINE_PERFLOGS': f'{tmp_path}/records',
        'OMB_PREFIX': '/opt/omb', 'RFM_REFERENCE_PREFIX': '/srv/references',
        'LIBTORCH': '/opt/torch'}
    others = {
        'PLUMBLINE_SITE': 'lumi', 'PLUMBLINE_SESSION_ID': 'x', 'HOME': '/home',
        'PLUMBLINE_NODES': 'n1', 'PLUMBLINE_MESSAGES': 'json://hidden',
        'PLUMBLINE_STACKS': 'hidden\nlines',
        'PLUMBLINE_SPACK_PACKAGES': 'https://me:hidden@mirror.example/x'}
    for name, value in {**own, **others}.items():
        monkeypatch.setenv(name, value)
    return {**own, 'PLUMBLINE_WORK': str(timers.WORK)}


def variables_of_cron(text: str) -> dict[str, str]:
    """As cron reads them: no quotes, no expansion."""
    return dict(line.split('=', 1) for line in text.splitlines()
                if re.match('[A-Z_]+=', line))


def variables_of_systemd(text: str) -> dict[str, str]:
    words = re.findall('^Environment=(.*)$', text, re.M)
    assert all(word == shlex.quote(word) or word[0] == word[-1] == '"'
               for word in words)
    return dict(word.strip('"').replace('%%', '%').split('=', 1) for word in words)


def variables_of_gitlab(text: str) -> dict[str, str]:
    """As GitLab expands them; without those that only it has."""
    values = yaml.safe_load(text)['variables']
    assert values.pop('PLUMBLINE_REPORT') == '$CI_PROJECT_DIR/report'
    assert values.pop('GIT_STRATEGY') == 'none'
    assert not re.search(r'(?<!\$)\$(?!\$)', ' '.join(values.values()))
    return {name: value.replace('$$', '$') for name, value in values.items()}


@pytest.mark.parametrize('kind, read', [
    ('systemd', variables_of_systemd), ('cron', variables_of_cron),
    ('gitlab', variables_of_gitlab)])
def test_what_starts_a_session_has_the_variables_of_the_shell(shell, kind, read):
    text = scheduled(kind, *MANY)
    assert read(text) == shell
    assert ('# Left out, because they may be secrets or have several lines: '
            'PLUMBLINE_SPACK_PACKAGES, PLUMBLINE_STACKS\n') in text
    assert 'hidden' not in text and str(timers.ROOT) in text.replace('%%', '%')


def test_systemd_takes_the_units_that_the_commands_write(tmp_path, shell, monkeypatch):
    text = scheduled('systemd', *MANY)
    assert 'TimeoutStartSec=34380' in text and 'KillMode=mixed' in text
    assert '"/srv/it\'s a/50%%.json" -- -n Osu$$' in text
    (tmp_path / 'systemctl').write_text('#!/bin/sh\n')
    (tmp_path / 'systemctl').chmod(0o755)
    subprocess.run(['sh', '-e', '-c', text], check=True, env={
        'HOME': str(tmp_path), 'PATH': f'{tmp_path}:/usr/bin:/bin'})
    folder = tmp_path / '.config' / 'systemd' / 'user'
    program = shutil.which('systemd-analyze', path='/usr/bin:/bin')
    if not program:
        skip_missing('systemd-analyze', 'no systemd-analyze here')
    verify = [program, '--user', 'verify', *map(str, sorted(folder.iterdir()))]
    env = {**os.environ, 'XDG_RUNTIME_DIR': str(tmp_path)}
    done = subprocess.run(verify, text=True, capture_output=True, env=env)
    # It may report something on other units of this machine, but not on these.
    assert done.returncode == 0 and 'plumbline' not in done.stderr, done.stderr


def test_the_line_of_cron_runs_and_mails_what_is_not_good(tmp_path, monkeypatch, shell):
    monkeypatch.setattr(timers, 'ROOT', tmp_path)
    monkeypatch.setattr(timers, 'WORK', tmp_path / 'a work')
    (tmp_path / 'site-configs' / 'lumi').mkdir(parents=True)
    (tmp_path / 'plumb').write_text('#!/bin/sh\nprintf "%s\\n" "$@"; exit $CODE\n')
    (tmp_path / 'plumb').chmod(0o755)
    text = scheduled('cron', *MANY)
    *head, line = text.splitlines()
    assert all(re.match(r'#|[A-Z_]+=', one) for one in head)
    assert line.startswith('30 1 * * * ') and not re.search(r'(?<!\\)%', line)
    command = line.split(None, 5)[5].replace(r'\%', '%')
    words = ''.join(f'{word}\n' for word in ['nightly', *MANY])
    for code, mailed in (0, ''), (1, words * 2):
        done = subprocess.run(['sh', '-c', command], text=True, capture_output=True,
                              env={**variables_of_cron(text), 'CODE': str(code)})
        assert (done.stdout, done.stderr) == (mailed, '')
    [log] = (tmp_path / 'a work' / 'nightly').glob('lumi-*.log')
    assert log.read_text() == words * 2
    with pytest.raises(SetupError, match='some crons accept only 998'):
        scheduled('cron', '--json', '/srv/' + 'x' * 900)


def test_gitlab_takes_the_pipeline(tmp_path, shell):
    """By GitLab's own schema, which the PyPI package check-jsonschema has."""
    text = scheduled('gitlab', *MANY)
    data = yaml.safe_load(text)
    words = shlex.join(MANY[MANY.index('--') + 1:])
    [night] = data['nightly']['script']
    assert '--page-url "$CI_JOB_URL/artifacts/' in night and night.endswith(words)
    assert data['nightly']['timeout'] == '10 hours'
    assert subprocess.run(['bash', '-n', '-c', night]).returncode == 0
    path = tmp_path / 'ci.yml'
    for change, code in (('', 0), ('maybe', 1)):
        path.write_text(text.replace('interruptible: false',
                                     f'interruptible: {change or "false"}'))
        done = subprocess.run([sys.executable, '-m', 'check_jsonschema',
                               '--builtin-schema', 'vendor.gitlab-ci', path],
                              text=True, capture_output=True)
        assert done.returncode == code, done.stdout
