"""The command line of plumb: help, suggestions, options of other programs."""
from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import signal
import subprocess

import pytest
from conftest import ROOT, of_family
from data import perflogs_factory as factory

from cli import __main__ as cli
from cli.session.commands import run, site_folder
from cli.setup.venv import WORK, SetupError
from config import places
from config.version import VERSION


def called(capsys, monkeypatch, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that starts nothing."""
    monkeypatch.setattr('sys.argv', ['plumb', *words])
    try:
        code = cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    return code, *capsys.readouterr()


@pytest.mark.parametrize('words', [[], ['--help']])
def test_the_help_lists_all_commands(capsys, monkeypatch, words):
    monkeypatch.setenv('COLUMNS', '100')
    code, out, _ = called(capsys, monkeypatch, *words)
    assert code == 0
    for commands in cli.COMMANDS.values():
        for name, (_, example) in commands.items():
            assert f'\n  {name} ' in out and example in out
    assert max(map(len, out.splitlines())) <= 100


def test_no_help_text_is_wider_than_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    texts = [cli.help_overview()]
    for command in [*cli.ABOUT, 'nightly schedule']:
        with contextlib.suppress(SystemExit):
            if command in cli.POSTPROCESS:
                module = importlib.import_module(
                    f'postprocess.{cli.POSTPROCESS[command]}')
                module.main(['--help'])
            cli.build_parser().parse_args([command, '--help'])
        texts.append(capsys.readouterr().out)
    assert all(texts) and max(
        map(len, '\n'.join(texts).splitlines())) <= 80


def test_parse_installs_the_packages_before_it_reads_families(capsys, monkeypatch):
    def refuse(tests: bool = False) -> None:
        raise SetupError('no packages here')

    monkeypatch.setattr(cli.setup, 'ensure_venv', refuse)
    code, out, err = called(capsys, monkeypatch, 'parse', '--help')
    assert (code, out) == (2, '') and 'no packages here' in err


def test_help_of_a_command(capsys, monkeypatch):
    code, out, _ = called(capsys, monkeypatch, 'help', 'run')
    assert code == 0 and out.startswith('usage: plumb run ')
    assert 'Example:\n  ./plumb run -n OsuPt2pt' in out


@pytest.mark.parametrize('words, line', [
    (['rnu'], 'plumb: no command rnu: did you mean run? '),
    (['test'], 'plumb: no command test: did you mean selftest? '),
    (['xyzzy'], 'plumb: no command xyzzy: ./plumb --help '),
    (['doctor', '--sit', 'x'],
     'plumb doctor: error: unknown argument --sit: did you mean --site? '),
    (['run', '--mdoe', 'full'],
     'plumb run: error: unknown option --mdoe: did you mean --mode? '
     'write options of reframe after --'),
    (['list'], 'plumb: no command list: did you mean ./plumb run -l? '),
    (['status'], 'plumb: no command status: did you mean ./plumb verdict? '),
    (['docs'], 'plumb: no command docs: did you mean ./plumb dev docs? '),
    (['references', 'calibate'], 'plumb references: error: unknown argument calibate: '
     'did you mean calibrate? the choice is calibrate, status'),
    (['nightly', 'schedule', 'x'], 'plumb nightly schedule: error: unknown argument x: '
     'the choice is cron, systemd, gitlab'),
    (['run', '--foo'], 'plumb run: error: unknown argument --foo: plumb run --help '),
    (['run', 'osu_latency'], 'plumb run: error: unknown argument osu_latency: '
     '-n osu_latency selects test cases by name'),
    (['nightly', 'a38ba5b9'], 'plumb nightly: error: unknown argument a38ba5b9: '),
    (['doctor', '--', '-n'],
     'plumb doctor: error: no argument after -- is expected: -n')])
def test_a_wrong_word_suggests_the_nearest(capsys, monkeypatch, words, line):
    monkeypatch.setattr(cli.setup, 'ensure_venv',
                        lambda tests=False: pytest.fail('it installs packages first'))
    code, out, err = called(capsys, monkeypatch, *words)
    assert code == 2 and not out
    assert err.splitlines()[-1].startswith(line)


@pytest.mark.parametrize('option', ['-V', '--version'])
def test_the_version_is_printed(capsys, monkeypatch, option):
    assert called(capsys, monkeypatch, option) == (0, f'plumb {VERSION}\n', '')


@pytest.mark.parametrize('command, passed', [
    (['run'], 'reframe'), (['nightly'], 'reframe'), (['locate'], 'reframe'),
    (['references', 'calibrate'], 'reframe'), (['selftest'], 'pytest')])
def test_options_of_other_programs_need_no_dashes(command, passed):
    words = ['-n', 'OsuPt2pt', '-S', 'a=b c', '-E', 'x == "y"', '--tag=quick']
    args = cli.parse_command_line([*command, *words])
    assert getattr(args, passed) == words
    # Known ones are taken wherever they stand; after -- none is known.
    if passed == 'reframe':
        args = cli.parse_command_line(
            [*command, '-n', 'A', '--site', 's', '--', '--site', 'r']
        )
        assert args.site == 's'
        assert args.reframe == ['-n', 'A', '--site', 'r']


@pytest.mark.parametrize('site, command', [
    ([], './plumb nightly'),
    (['--site', 'my site'], "./plumb nightly --site 'my site'")])
def test_a_nightly_session_has_a_command_of_its_own(site, command):
    args = cli.parse_command_line(['run', '--mode', 'nightly', '-n', 'OsuPt2pt', *site])
    with pytest.raises(SetupError) as err:
        run(args)
    assert str(err.value).endswith(f'is started with {command}')


@pytest.mark.parametrize('words', [
    ['-Sbringup=1'], ['-S', 'bringup=1'], ['--setvar=OsuPt2pt.bringup=1']])
def test_bringup_has_one_form(words):
    args = cli.parse_command_line(['run', *words])
    with pytest.raises(SetupError, match='write --bringup instead'):
        run(args)


@pytest.mark.parametrize('site, folder', [
    ('lumi', ROOT / 'site-configs' / 'lumi' / 'references'),
    (str(ROOT / 'site-configs' / 'lumi'),
     ROOT / 'site-configs' / 'lumi' / 'references'),
    ('local', WORK / 'references')])
def test_references_are_those_of_the_site(site, folder):
    assert places.reference_folder_of_site(site_folder(site), None) == folder


@pytest.mark.parametrize('line, words', [
    ('plumb run --si', ['--site']), ('plumb references c', ['calibrate'])])
def test_shells_complete(tmp_path, line, words):
    """argcomplete writes to file descriptor 8."""
    out = tmp_path / 'out'
    subprocess.run(
        ['bash', '-c', 'exec "$0" 8>"$1" 9>/dev/null', ROOT / 'plumb', out],
        env={**os.environ, '_ARGCOMPLETE': '1', 'COMP_LINE': line,
             'COMP_POINT': str(len(line)), '_ARGCOMPLETE_IFS': '\n'},
        check=True)
    assert [word.strip() for word in out.read_text().split('\n')] == words


@pytest.fixture
def variables(tmp_path):
    """The environment of a command that has perflogs to read."""
    factory.write(tmp_path / 'perflogs', [
        factory.record('latency', 1.0, 8, day=day) for day in range(3)])
    (tmp_path / 'tmp').mkdir()
    return {**os.environ, 'TMPDIR': str(tmp_path / 'tmp'),
            'PLUMBLINE_PERFLOGS': str(tmp_path / 'perflogs')}


@pytest.mark.parametrize('words', [
    ['parse', 'osu', ROOT / 'README.md'], ['nosuch']])
def test_a_reader_that_has_left_ends_a_command_quietly(variables, words):
    """What `| head` does, for stdout and stderr."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [ROOT / 'plumb', *words], stdout=write, stderr=subprocess.PIPE
            if words != ['nosuch'] else write, text=True, env=variables)
    finally:
        os.close(write)
    assert done.returncode == 128 + signal.SIGPIPE
    assert not [line for line in (done.stderr or '').splitlines()
                if 'README.md' not in line]
    assert not os.listdir(variables['TMPDIR']), 'no temporary file is left'


def test_an_output_that_lacks_a_character(variables):
    """History prints the unit µs."""
    done = subprocess.run(
        [ROOT / 'plumb', 'history', 'latency'], capture_output=True,
        text=True, env={**variables, 'PYTHONIOENCODING': 'ascii'})
    assert done.returncode == 0, done.stderr
    assert 'latency (?s), lower is better' in done.stdout


def test_head_of_an_answer(variables):
    done = subprocess.run(
        ['bash', '-c', '"$0" sql "FROM range(1000000)" --csv - | head -n 2; '
         'echo ${PIPESTATUS[0]}', ROOT / 'plumb'], capture_output=True,
        text=True, env=variables)
    assert done.stderr == ''
    assert done.stdout.split() == ['range', '0', str(128 + signal.SIGPIPE)]


@pytest.mark.parametrize('more, colours', [({}, True), ({'NO_COLOR': '1'}, False)])
def test_colours_only_on_a_terminal_without_no_color(suite, more, colours):
    words = ' '.join(map(shlex.quote, [
        'reframe', '--dry-run', '--exec-policy=serial', *of_family('taobench'),
        '-t', 'smoke', '-Sbringup=1']))
    words = f'script -qec {shlex.quote(words)} /dev/null'
    env = {name: value for name, value in os.environ.items()
           if name != 'NO_COLOR'} | {'TERM': 'xterm'}
    env |= suite.variables | more
    done = subprocess.run(
        ['bash', '-c', f'{suite.exports(env)}\n{words}'], text=True, env=env,
        capture_output=True, stdin=subprocess.DEVNULL, cwd=suite.tmp)
    assert 'OK' in done.stdout, done.stdout + done.stderr
    assert ('\x1b[' in done.stdout) == colours
