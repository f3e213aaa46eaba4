"""Command lines of the documentation: they parse, and those marked run."""
from __future__ import annotations

import argparse
import ast
import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt

from cli.__main__ import PASSING
from cli.arguments import ABOUT, COMMANDS
from cli.demo import records
from cli.session.parse import add_family_options
from config.commandline import Parser
from tests.conftest import ROOT, git

#: The beginning of a command line of plumb.
PLUMB = re.compile(r'(?<![\w/.$-])(\./plumb(?=\s)|plumb(?= \S))')
#: What a reader has to replace, or leaves out.
PLACEHOLDER = re.compile(r'[A-Z][A-Z0-9_]*|\W*\.\.\.\W*|…')
#: Options that every command has.
HELP = {'-h', '--help'}


def pages() -> list[Path]:
    """The Markdown files of the repository."""
    names = git('ls-files', '-coz', '--exclude-standard', '*.md').split('\0')
    return [ROOT / name for name in names if name and (ROOT / name).exists()
            and '/templates/' not in name]


class Shown(NamedTuple):
    """Code that a page shows."""
    line: int
    text: str
    #: `inline`, or the words after the fence; empty: a block without words.
    kind: str = 'inline'


def shown_code(markdown: str) -> Iterator[Shown]:
    """Blocks and spans of code of a page."""
    for token in MarkdownIt('gfm-like', {'linkify': False}).parse(markdown):
        line = (token.map or [0])[0] + 1
        if token.type in ('fence', 'code_block'):
            yield Shown(line, token.content, token.info.strip())
        for child in token.children or ():
            if child.type == 'code_inline':
                yield Shown(line, child.content)


def plumb_words(text: str) -> Iterator[list[str]]:
    """The words of each command line of plumb in a text of the shell."""
    text = text.replace('\\\n', ' ')
    for begin in PLUMB.finditer(text):
        if re.search(r'(^|\s)#.*\Z', text[:begin.start()]):
            continue                                    # a comment
        lexer = shlex.shlex(text[begin.end():], posix=True,
                            punctuation_chars='();<>|&\n')
        lexer.whitespace, lexer.whitespace_split = ' \t', True
        lexer.commenters = ''                # would remove the end of the line
        words: list[str] = []
        for word in iter(lexer.get_token, lexer.eof):
            if set(word) <= set('();<>|&\n') or word.startswith('#'):
                break
            words.append(word)
        yield words


@functools.cache
def all_parsers() -> dict[str, Parser]:
    from docs.generate_commands import parsers_by_command
    return parsers_by_command()


@functools.cache
def options_passed_to(program: str) -> set[str]:
    """The options of ReFrame or pytest, by its own help."""
    done = subprocess.run([Path(sys.executable).with_name(program), '--help'],
                          text=True, capture_output=True, check=True, cwd=ROOT)
    return set(re.findall(r'(?<![\w-])--?\w[\w-]*', done.stdout))


def fault_of_command_line(words: list[str], is_complete: bool) -> str:
    """Why plumb would refuse a command line; empty: it would not.

    :param is_complete: False: a command that is only named may lack arguments
    """
    if not words or words[0] in ('--version', *HELP):
        return ''
    if words[0] == 'help':
        words = [*words[1:], '--help']
    name = words[0]
    if PLACEHOLDER.fullmatch(name):
        return ''
    if name not in ABOUT:
        return f'no command {name}'
    actions = {command.split()[1] for command in all_parsers()
               if command.startswith(f'{name} ')}
    parser = all_parsers()[name]
    if actions and len(words) > 1 and words[1] in actions:
        parser, words = all_parsers()[f'{name} {words[1]}'], words[2:]
    elif actions and len(words) > 1 and not PLACEHOLDER.fullmatch(words[1]) and (
            name not in ('nightly', 'verdict') and words[1] not in HELP):
        return f'no action {words[1]} of {name}'
    elif name == 'parse' and words[1:2] and words[1] not in HELP and (
            not PLACEHOLDER.fullmatch(words[1])):
        parser, words = all_parsers.__wrapped__()['parse'], words[1:]
        add_family_options(parser, words[0])
    else:
        words = words[1:]
    return fault_of_arguments(parser, words, is_complete)


def fault_of_arguments(parser: Parser, words: list[str], is_complete: bool) -> str:
    """Why a parser would refuse arguments; empty: it would not."""
    command = parser.prog.removeprefix('plumb ')
    known = {option for action in parser._actions
             for option in action.option_strings} | HELP
    own = words[:words.index('--')] if '--' in words else words
    kept: list[str] = []
    for word in words:
        option = word.strip('[]').partition('=')[0]
        if not re.match(r'--?[A-Za-z]', option) or option in known:
            kept.append(word)
        elif command not in PASSING:
            return f'{command} has no option {option}'
        else:
            passed = options_passed_to(PASSING[command])
            if option not in passed and (option[:2] == '--' or
                                         option[:2] not in passed):
                return f'{PASSING[command]} has no option {option}'
    if command in PASSING or not is_complete or HELP & {*own} or any(
            word[0] in '[{' or '...' in word for word in words if word):
        return ''
    return fault_of_values(parser, kept)


def fault_of_values(parser: Parser, words: list[str]) -> str:
    """What argparse reports about complete arguments; placeholders fit
    everywhere."""
    class Refused(Exception):
        pass

    def refuse(message: str) -> None:
        raise Refused(message)

    relaxed = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    relaxed.error = refuse                              # type: ignore[method-assign,assignment]
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        # `references` adds the site, if a person gives none.
        action.required = action.required and action.dest != 'site'
        convert = action.type if callable(action.type) else str
        choices, action.choices = action.choices, None

        def value(text: str, convert=convert, choices=choices):
            if PLACEHOLDER.fullmatch(text):
                return text
            result = convert(text)
            if choices and result not in choices:
                raise argparse.ArgumentTypeError(f'{text} is none of {choices}')
            return result

        if action.nargs != 0:
            action.type = value
        relaxed._add_action(action)
    try:
        relaxed.parse_args(words)
    except Refused as err:
        return str(err)
    return ''


def faults_of_page(markdown: str) -> list[str]:
    """`LINE: COMMAND: reason` for each command line that plumb would refuse."""
    faults = []
    for line, text, kind in shown_code(markdown):
        inline = kind == 'inline'
        if inline and not re.match(r'(\./)?plumb\s', text):
            continue
        if not inline and kind.partition(' ')[0] not in ('', 'sh', 'bash'):
            # Output of programs: only lines that begin with a command.
            text = '\n'.join(re.findall(r'^\s*\$? *(\./plumb .*)$', text, re.M))
        try:
            for words in plumb_words(text):
                fault = fault_of_command_line(words, not inline)
                if fault:
                    faults.append(f'{line}: plumb {" ".join(words)}: {fault}')
        except ValueError as err:
            faults.append(f'{line}: {text!r}: {err}')
    return faults


def test_command_lines_of_the_documentation_parse():
    faults = [f'{path.relative_to(ROOT)}:{fault}' for path in pages()
              for fault in faults_of_page(path.read_text())]
    assert not faults, '\n'.join(faults)


def test_examples_of_the_help_parse():
    examples = [example for commands in COMMANDS.values()
                for _, example in commands.values()]
    faults = [fault for example in examples
              for fault in faults_of_page(f'```sh\n{example}\n```')]
    assert len(examples) > 15 and not faults


def commands_in_messages(path: Path) -> Iterator[str]:
    """The command lines of plumb in the texts of a module, up to what it computes."""
    for node in ast.walk(ast.parse(path.read_text('utf-8'))):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield from re.findall(r'\./plumb ([a-z][^;|,`:\'"()\n]*)', part.value)


def test_commands_in_messages_parse():
    """Messages are prose: what follows the options is not looked at."""
    lines = {line for folder in ('checks', 'cli', 'config', 'postprocess')
             for path in (ROOT / folder).rglob('*.py')
             for line in commands_in_messages(path)}
    faults = [f'{line}: {fault}' for line in lines if (fault := fault_of_command_line(
        [word.rstrip('.') for word in line.split()], False))]
    assert len(lines) > 10 and not faults


@pytest.mark.parametrize('markdown, fault', [
    ('    ./plumb rnu', '1: plumb rnu: no command rnu'),
    ('a\n\n```sh\n./plumb run --mod x\n```', '3: plumb run --mod x: reframe has no'),
    ('Call `./plumb references acept`.', '1: plumb references acept: no action acept'),
    ('| `plumb export --cvs FILE` |', 'export has no option --cvs'),
    ('`plumb parse osu --perflogs x FILE`', 'parse has no option --perflogs'),
    ('```sh\n./plumb references calibrate --minutes\n```', ''),
    ('```sh\n./plumb report --last none\n```', "argument --last: "),
    ('```sh\n./plumb verdict mute ID --reason x\n```', 'required: --until'),
    ('```sh\nX=1 ./plumb sql \\\n  --cvs\n```', 'sql has no option --cvs'),
    ('```text\n$ ./plumb reprot\n```', 'no command reprot'),
    ('```sh\n./plumb sql "SELECT\n```', 'No closing quotation'),
])
def test_a_command_line_that_plumb_refuses_is_found(markdown, fault):
    faults = faults_of_page(markdown)
    assert fault in ''.join(faults) and len(faults) == bool(fault), faults


# ------------------------------------------------------------ blocks that run

#: Variables of a session on a machine that other tests use, too.
VARIABLES = {'PLUMBLINE_OTHERS_LIMIT': '1e6'}


def script_of_page(markdown: str) -> str:
    """One script of bash with all blocks of a page that are marked to run."""
    lines = ['set -e']
    for line, text, kind in shown_code(markdown):
        words = kind.split()
        if words[:2] != ['sh', 'runnable']:
            continue
        code = next((word[5:] for word in words if word.startswith('exit=')), '0')
        lines += [f'echo "block of line {line}, exit code {code}:" >&2', 'set +e -x'
                  if code != '0' else 'set -x', text,
                  f'{{ code=$?; set -e +x; test $code = {code}; }} 2>/dev/null']
    return '\n'.join(lines) + '\n' if len(lines) > 1 else ''


def run_page(markdown: str, copy_in_place, tmp_path: Path
             ) -> subprocess.CompletedProcess[str]:
    """Run the marked blocks of a page where its readers are: in a checkout
    with the perflogs of the demo."""
    script = tmp_path / 'page.sh'
    script.write_text(script_of_page(markdown))
    records.write_perflogs(copy_in_place.folder / 'perflogs')
    return copy_in_place.run('bash', str(script), timeout=800, **VARIABLES,
                             PLUMBLINE_LOCK=str(tmp_path / 'lock'))


#: Pages with blocks that are marked to run.
RUNNABLE = [path for path in (ROOT / 'README.md',
                              *sorted((ROOT / 'docs').rglob('*.md')))
            if '```sh runnable' in path.read_text()]


def test_each_tutorial_has_blocks_that_run():
    assert {*(ROOT / 'docs' / 'tutorials').glob('*.md')} <= {*RUNNABLE}
    assert all(script_of_page(path.read_text()) for path in RUNNABLE) and RUNNABLE


@pytest.mark.strict
@pytest.mark.timeout(900)
@pytest.mark.parametrize('path', RUNNABLE, ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_that_are_marked_run(path, copy_in_place, tmp_path):
    done = run_page(path.read_text(), copy_in_place, tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_a_block_that_fails_is_found(copy_in_place, tmp_path):
    page = ('```sh runnable\nexport NAME=latency\n./plumb history $NAME\n```\n'
            '```sh\nexit 3\n```\n'
            '```sh runnable exit=2\n./plumb history nosuch\n```\n'
            '```sh runnable\n./plumb history $NAME >/dev/null\n./plumb sql nosuch\n'
            'echo further\n```\n')
    done = run_page(page, copy_in_place, tmp_path)
    assert done.returncode == 2 and 'further' not in done.stdout, done.stdout
    assert re.findall('block of line (.+):', done.stderr) == [
        '1, exit code 0', '8, exit code 2', '11, exit code 0'], done.stderr
    assert '+ ./plumb sql nosuch' in done.stderr
