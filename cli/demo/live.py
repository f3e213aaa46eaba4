"""`./plumb demo --live`: real measurements, two real faults, and what finds them.

Each step is a command of the suite that a person can type. The records, the page and
the references are in a folder of the demo, and never in those of the user.
"""
from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli.setup.venv import SetupError
from config import places
from config.sessions import lock

#: The test cases: the latency between two ranks of this machine up to 1 KiB, and a
#: store, whose SET costs it more than the load generator. Both take seconds.
LATENCY = ('-n', 'OsuPt2pt%program=osu_latency%placement=intra_node%buffers=host',
           '-S', 'OsuPt2pt.max_size=1024')
STORE = ('-n', 'StoreServes%scenario=valkeyset$')

#: Half of the memory that Valkey needs for the 100 000 values of the test case: each
#: has 64 B, and takes 1.6 times as many. Unit: MiB.
MEMORY = 5

#: What to do if a step ended with an unexpected exit code.
HINTS = {0: 'the fault was not found; please report it, with the output above',
         1: 'a sound run failed: repeat the demo if other programs used the CPUs, '
            'otherwise please report it',
         2: 'the message above names what is missing on this machine',
         3: 'nothing was compared, because other programs used the CPUs or the values '
            'vary too much; repeat the demo on an idle machine'}


@dataclass(frozen=True)
class Step:
    """A command of the demo."""
    #: The heading.
    about: str
    #: Arguments of ./plumb.
    words: tuple[str, ...]
    #: Exit code of the command on a machine that can run the demo.
    code: int = 0
    #: Variables of this command alone: the fault.
    fault: Mapping[str, str] = field(default_factory=dict)
    #: Whether each test case of the session passes on a quiet machine.
    all_pass: bool = False

    def command_line(self) -> str:
        """The command for a shell."""
        return ' '.join([*(f'{name}={value}' for name, value in self.fault.items()),
                         './plumb', *map(shlex.quote, self.words)])


def live_steps(cpu: int) -> list[Step]:
    """All steps of the demo.

    :param cpu: a CPU that this process may use
    """
    return [
        Step('Measure two test cases five times, and write their references.',
             ('references', 'calibrate', '--interval', '0', *LATENCY, *STORE)),
        Step('Measure again: on a quiet machine both test cases pass.',
             ('run', '--require-compared', '--all', *LATENCY, *STORE), all_pass=True),
        *fault_steps(cpu),
        Step('Without the faults, both pass again.',
             ('run', '--require-compared', '--all', *LATENCY, *STORE), all_pass=True)]


def fault_steps(cpu: int) -> list[Step]:
    """The steps with a fault.

    :param cpu: a CPU that this process may use
    """
    return [
        Step(f'A fault: both ranks run on CPU {cpu}.', ('run', *LATENCY), code=1,
             # A rank of Open MPI that waits for the other one lets it run. Otherwise
             # each message takes milliseconds.
             fault={'OMPI_MCA_mpi_yield_when_idle': '1',
                    'PLUMBLINE_RANK_CPUS': f'{cpu}:{cpu}'}),
        Step(f'Another fault: the store has {MEMORY} MiB, half of what its data need.',
             ('run', *STORE, '-S', f'StoreServes.memory={MEMORY}'), code=1)]


def folder_variables(folder: Path) -> dict[str, str]:
    """The variables that keep the demo apart from the records of the user.

    :param folder: the folder of the demo
    """
    return {'PLUMBLINE_SITE': 'local',
            'PLUMBLINE_PERFLOGS': str(folder / 'perflogs'),
            'PLUMBLINE_REPORT': str(folder / 'report'),
            'RFM_REFERENCE_PREFIX': str(folder / 'references')}


def run_live_demo() -> Path:
    """Run all steps in a new folder; returns the path of the page.

    :raises SetupError: the machine cannot run it, a step had another result, or a
        second demo is running
    """
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise SetupError('demo --live needs 2 CPUs for two ranks, and this process may '
                         f'use only CPU {cpus[0]}; run it on another machine, or '
                         'without --live')
    folder = places.work_folder() / 'demo-live'
    with lock.hold_file_lock(folder / '.lock', 0, busy=f'{folder} is written by',
                             advice='wait until it ends'):
        return run_steps(folder, live_steps(cpus[0]))


def results_besides_pass(perflogs: Path) -> str:
    """The results of the newest session besides `pass`; '': all passed."""
    from postprocess import records, results
    frame, _ = records.read(perflogs, on_error='collect')
    newest = max(map(str, frame['session'].unique()))
    ended = results.results_of_session(frame, newest).values()
    return ', '.join(sorted({one.result for one in ended} - {'pass'}))


def run_steps(folder: Path, steps: Iterable[Step]) -> Path:
    """Run steps in a new folder, each after its heading and command.

    :param folder: its perflogs, references and page are made anew
    :returns: the path of the page
    :raises SetupError: a step had another exit code than expected
    """
    variables = folder_variables(folder)
    for name in ('perflogs', 'references', 'report'):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    print('Each step is a command that you can repeat, after these lines:\n',
          *(f'  export {name}={shlex.quote(value)}'
            for name, value in variables.items()), sep='\n', flush=True)
    for number, step in enumerate(steps, 1):
        print(f'\n{number}. {step.about}\n\n$ {step.command_line()}', flush=True)
        code = subprocess.run(
            ['./plumb', *step.words], cwd=places.ROOT,
            env={**os.environ, **variables, **step.fault}).returncode
        if code == 130:
            raise KeyboardInterrupt
        if code != step.code:
            raise SetupError(f'step {number} ended with exit code {code}, expected '
                             f'{step.code}: {HINTS.get(code, "see its output")}')
        others = step.all_pass and results_besides_pass(folder / 'perflogs')
        print(f'(exit code {code}, as expected' + (
            f'; but a test case is {others}: the machine is not quiet enough to '
            'compare both' if others else '') + ')', flush=True)
    return folder / 'report' / 'index.html'
