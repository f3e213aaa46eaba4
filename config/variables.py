"""The environment variables of the suite, in one table.

docs/reference/environment.md, the timers of nightly sessions and the tests are made
from it.
"""
from __future__ import annotations

from typing import Literal, NamedTuple

#: Variable with the receivers of messages of nightly sessions.
MESSAGES = 'PLUMBLINE_MESSAGES'

#: `carried`: timers set it for the sessions that they start. `read`: a person sets it
#: for a command, or it is a secret. `internal`: the suite sets it for its processes.
#: `test`: only the self-tests read it.
Kind = Literal['carried', 'read', 'internal', 'test']


class Variable(NamedTuple):
    """A variable of the environment."""
    name: str
    kind: Kind
    #: Heading on the page of variables.
    section: str
    #: What it is, as Markdown.
    meaning: str
    #: What holds without it, as Markdown; '': nothing.
    default: str = ''


def _section(title: str, kind: Kind, *rows: tuple[str, ...]) -> list[Variable]:
    return [Variable(name, kind, title, *rest) for name, *rest in rows]


#: All variables that the suite reads or sets, in the order of the page.
VARIABLES: tuple[Variable, ...] = (
    *_section(
        'Folders and files', 'carried',
        ('PLUMBLINE_WORK',
         'folder of installed software, stage folders and results. On a cluster all '
         'nodes must share it. Its path has no blanks and quotes.',
         '`.plumbline` in the checkout'),
        ('PLUMBLINE_PERFLOGS', 'folder of the perflogs', '`perflogs` in the checkout'),
        ('PLUMBLINE_REPORT', 'folder of the page', '`report` in the checkout'),
        ('RFM_REFERENCE_PREFIX',
         'folder of the reference files of this site',
         '`references` of the site; for the site `local` `.plumbline/references`'),
        ('PLUMBLINE_LOCK',
         'file of the lock of the machine '
         '([sessions](sessions.md#order-and-concurrency))',
         '`plumbline.lock` in `$XDG_RUNTIME_DIR`')),
    *_section(
        'Set-up', 'carried',
        ('PLUMBLINE_PYTHON', 'the Python that set-up uses, 3.10 or newer',
         'a suitable Python on PATH'),
        ('PATH', 'where programs are searched', 'that of the shell')),
    *_section(
        'Set-up', 'read',
        ('PLUMBLINE_SITE',
         'default of `--site`: the name of a folder of `site-configs/`, or a path. '
         'Timers have the option `--site` instead.', '`local`'),
        ('NO_COLOR', 'if set, the output has no colours', 'colours on a terminal')),
    *_section(
        'Sessions', 'carried',
        ('SBATCH_ACCOUNT',
         'account of Slurm, for sites whose partitions pass it on '
         '(`slurm_envvar_whitelist`)', 'none')),
    *_section(
        'Sessions', 'read',
        (MESSAGES,
         'URLs of the receivers of nightly summaries, separated by blanks ([send the '
         'summary](../how-to/nightly.md#send-the-summary))',
         'the file `messages.urls` of the site')),
    *_section(
        'Installed programs on the site `local`', 'carried',
        ('OMB_PREFIX', 'an installation of the OSU micro-benchmarks', 'none'),
        ('TAOBENCH_PREFIX',
         "DCPerf's `tao_bench_server`, `tao_bench_client` and `leader_sizes.json`",
         'none'),
        ('OPTCAST_PREFIX',
         "Optcast's `optcast-reduction-server` and `libnccl-net.so`", 'none'),
        ('SMARTREDIS_PREFIX',
         '`include` and `lib` of SmartRedis, redis-plus-plus and hiredis', 'none'),
        ('LIBTORCH', 'a libtorch, for models in TorchScript', 'none'),
        ('REDISAI', 'the module RedisAI; its folder `backends` is beside it', 'none')),
    *_section(
        'Noise on the site `local`', 'carried',
        ('PLUMBLINE_OTHERS_LIMIT',
         'share of the CPUs of a test case that other processes may use before it is '
         '`inconclusive`; 1e6 turns the limit off', '0.05')),
    *_section(
        'Job scripts with servers', 'read',
        ('PLUMBLINE_NODES',
         'nodes of the job, separated by blanks; the first one is the node of the '
         'script', 'the nodes of Slurm or PBS, otherwise this node')),
    *_section(
        'Spack', 'carried',
        ('SPACK_ROOT', 'the folder of Spack', '`spack` on PATH'),
        ('SPACK_PYTHON', 'the Python that runs Spack', 'the Python of the suite'),
        ('PLUMBLINE_STACKS',
         'site `local`: the stacks to measure, separated by commas; each becomes an '
         'environment', 'none'),
        ('PLUMBLINE_SPACK_PACKAGES',
         'a clone of spack-packages, for machines without a network',
         'Spack clones the commit in `spack-envs/common/packages-pinned.yaml`')),
    *_section(
        'Self-tests', 'test',
        ('PLUMBLINE_BOX_NODES', 'number of nodes of the site `devcluster`', '4'),
        ('PLUMBLINE_LIBTORCH', 'prefix of a libtorch, for the tests of TorchScript'),
        ('PLUMBLINE_SMARTREDIS',
         'a Python with the package `smartredis`, for the tests with its client'),
        ('PLUMBLINE_WRITE_SCRIPTS',
         '`1`: tests/checks/test_job_scripts.py writes its expected job scripts anew'),
        ('PLUMBLINE_TEST_SCALE',
         'factor by which the embedded programs multiply the times that they print'),
        ('STANDIN_FAULT', 'a fault that the stand-in of NCCL simulates'),
        ('PLUMBLINE_TEST_FORKS', '`no`: each command starts a new Python instead of a '
         'fork')),
    *_section(
        'Variables that the suite sets', 'internal',
        ('PLUMBLINE_ROOT', 'the checkout'),
        ('LOGNAME',
         'the number of a user without an entry in `/etc/passwd`, for ReFrame, if no '
         'variable has a name'),
        ('PLUMBLINE_SESSION_ID',
         'the identifier of the session, if `plumb` has chosen it'),
        ('PLUMBLINE_LOCK_HELD', 'the lock that a parent process holds'),
        ('PLUMBLINE_JOB', 'inside a job: a mark of its processes'),
        ('PLUMBLINE_RANK', 'inside a job: a mark of the processes of a rank'),
        ('PLUMBLINE_RUN', 'inside a job: the name of the repetition'),
        ('LOCAL_RANK',
         'inside a job: the number of the MPI rank on its node, set from the '
         "launcher's variable"),
        ('PLUMBLINE_LAUNCHERS',
         'inside a job: file with the pids of the launchers, whose session folders are '
         'removed'),
        ('PLUMBLINE_GPUS', 'inside a job: kind of GPU'),
        ('PLUMBLINE_RANK_CPUS', 'inside a job: the CPUs of each rank of a node'),
        ('PLUMBLINE_TEST_CC', 'in tests: the real compiler'),
        ('PLUMBLINE_TEST_BUILT', 'in tests: the folder of compiled programs')),
)


def names_of_kind(*kinds: Kind) -> frozenset[str]:
    """The names of the variables of some kinds."""
    return frozenset(one.name for one in VARIABLES if one.kind in kinds)
