#!/usr/bin/env python3
"""Writes references from published outputs of OMB: site-configs/*/references/osu.yaml.

    .plumbline/venv/bin/python bench/published.py FOLDER

FOLDER has a bare or ordinary clone of each repository of SOURCES, OWNER+NAME/repo or
NAME. An output counts for a test case of the site if program, nodes, ranks, window,
synchronisation and machine type are the same. Entries of other publications in the
files are kept.

- Value: the median over all repetitions of the source.
- Tolerance: the prediction limit of `plumb references calibrate`
  (postprocess/references/spread.py), with a repetition in place of a session. A metric
  whose tolerance would exceed its max tolerance is written without one.
- Fewer than five repetitions give no tolerance of their own. The same program on other
  numbers of nodes of the same machine type then gives the spread: all repetitions as
  ratios to the median of their test case, widened for the medians that were estimated
  (pooled variance, n - k degrees of freedom for n repetitions of k test cases).
- A test case is left out if none of its metrics has a tolerance.
"""
from __future__ import annotations

import math
import re
import statistics
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from common import (
    ROOT,
    option_parser,
    print_table_head,
    print_table_row,
    run_main_and_exit,
)
from ruamel.yaml.comments import CommentedMap

from checks.core.parsers import Output, ParseError
from checks.osu import logs, programs
from config.references import FROM, has_tolerance, source_key
from config.regular import write_files_atomically
from config.sessions.judged import (
    WITHIN_PART,
    compute_derived_metrics,
    judged_metric_names,
    metric_key,
)
from postprocess.names import natural_sort_key
from postprocess.references import editing, spread, writing
from postprocess.references.spread import FEWEST_RUNS

STUDY = 'converged-computing/metrics-operator-experiments'
PERFORMANCE = 'converged-computing/performance-study'


class Source(NamedTuple):
    """Outputs of one machine type in a repository."""
    #: Site and partition of this machine type.
    place: str
    machine: str
    #: Cores of a node: ranks per node of a layout `full`.
    cores: int
    repository: str
    #: Pattern of the paths. Its group `nodes` is the number of nodes of collectives,
    #: where the output has no command line.
    paths: str
    #: Day on which the outputs were made.
    date: str


#: Left out are outputs of these studies on machines that no site has, with a single
#: repetition, or with tables without units; on Kubernetes in performance-study, where
#: collectives took two to five times as long as on virtual machines of the same type;
#: on V100, where OMB warns that ranks may share a GPU; with both ranks on one node
#: (operator-experiments, run14); and with Caliper loaded into the program.
SOURCES = (
    Source('gcp-slurm:c2d-2', 'c2d-standard-2', 1, STUDY,
           r'google/kubecon/osu-benchmarks/run4/data/crd-metrics-.*\.json',
           '2023-09-17'),
    Source('gcp-slurm:c3-4', 'c3-standard-4', 2, STUDY,
           r'google/kubecon/osu-benchmarks/run5/data/crd-metrics-.*\.json',
           '2023-10-04'),
    Source('gcp-slurm:c2d-56', 'c2d-standard-56', 28, STUDY,
           r'google/kubecon/osu-benchmarks/run6/data/crd-metrics-.*\.json',
           '2023-10-06'),
    Source('gcp-slurm:c3', 'c3-standard-176', 88, STUDY,
           r'google/kubecon/lammps/run1/data/osu-benchmarks/'
           r'crd-osu-benchmarks-metrics-\d+\.json', '2023-09-23'),
    Source('gcp-slurm:c2d', 'c2d-standard-112', 56, PERFORMANCE,
           r'experiments/google/compute-engine/cpu/size(?P<nodes>32|64|128)/results/'
           r'osu/osu-.*\.out', '2024-08-27'),
    Source('gcp-slurm:h3', 'h3-standard-88', 88,
           'converged-computing/google-performance-study',
           r'experiments/gke/cpu/size-(?P<nodes>4|16|32|64|128)/logs/'
           r'osu_(latency|bw|allreduce)\.out', '2025-04-17'),
    Source('gcp-slurm:c4', 'c4-standard-96', 48,
           'converged-computing/gke-compute-engine-performance-study',
           r'experiments/google/gke/cpu/size(?P<nodes>\d+)/results/'
           r'osu-(latency|allreduce)/no-caliper/osu-.*\.out', '2025-10-07'),
    Source('aws-parallelcluster:hpc6a', 'hpc6a.48xlarge', 96, PERFORMANCE,
           r'experiments/aws/parallel-cluster/cpu/size(?P<nodes>\d+)/results/'
           r'osu/osu-.*\.out', '2024-08-30'),
    Source('aws-parallelcluster:hpc7g', 'hpc7g.4xlarge', 16,
           'converged-computing/flux-usernetes',
           r'aws/experiment/final/results-osu/bare-metal/'
           r'((all_reduce|osu_barrier)-(?P<nodes>\d+)|osu_bw|osu_latency).*\.out',
           '2024-06-01'),
)

#: Their values have another meaning elsewhere: the time of the launcher and of the
#: start of the MPI; another number of processes by default; a row of another size since
#: OMB 7.1.
LEFT_OUT = ('osu_hello', 'osu_init', 'osu_latency_mp', 'osu_cas_latency',
            'osu_fop_latency')
CHECKS = {'pt2pt': 'OsuPt2pt', 'threaded': 'OsuPt2pt', 'multi': 'OsuMulti',
          'one_sided': 'OsuRma', 'one_sided_active': 'OsuPutBibw',
          'collective': 'OsuCollective'}
#: `$index` of every check class.
LEVELS = ('$partition', '$environ', 'source', 'params', 'settings')

#: (check class, parameters) of a test case.
TestCase = tuple[str, str]
#: Metric and size -> value, of one repetition.
Values = dict[tuple[str, int | None], float]


def git(folder: Path, *words: str) -> str:
    """The output of a git command in a clone."""
    return subprocess.run(['git', '-C', folder, *words], check=True,
                          capture_output=True).stdout.decode(errors='replace')


def clone_of(repository: str, folder: Path) -> Path:
    """The clone of a repository.

    :raises SystemExit: the folder has none
    """
    for name in (f'{repository.replace("/", "+")}/repo', repository.split('/')[1]):
        if (folder / name).is_dir():
            return folder / name
    raise SystemExit(f'{folder}: no clone of github.com/{repository}')


def matching_files(clone: Path, paths: str) -> Iterator[tuple[re.Match[str], str]]:
    """The files of the newest commit whose paths match, and their text."""
    matches = [match for path in git(clone, 'ls-tree', '-rz', '--name-only', 'HEAD'
                                     ).split('\0')
               if (match := re.fullmatch(paths, path))]
    names = ''.join(f'HEAD:{match[0]}\n' for match in matches).encode()
    answer = subprocess.run(['git', '-C', clone, 'cat-file', '--batch'], input=names,
                            check=True, capture_output=True).stdout
    for match in matches:
        head, _, answer = answer.partition(b'\n')
        size = int(head.split()[2])
        yield match, answer[:size].decode(errors='replace')
        answer = answer[size + 1:]


def test_case_of(output: Output, nodes: int, cores: int) -> TestCase | None:
    """The test case that runs what an output is of; None: there is none.

    :param nodes: nodes of a collective whose output has no command line
    :param cores: cores of a node
    """
    program = output.records[0].program
    row = programs.find_program(program)
    if not row or row.group not in CHECKS or program in LEFT_OUT:
        return None
    about = dict(word.split('=', 1) for word in output.params.split())
    given: dict[str, str] = {'program': program}
    if row.group in ('multi', 'collective'):
        nodes = output.num_nodes or nodes
        ranks = output.num_tasks or nodes * cores
        kind = {nodes * cores: 'full', nodes: 'one'}.get(ranks)
        # On all cores the published sums exceed the rate of the NICs.
        if not kind or (program, kind) == ('osu_mbw_mr', 'full'):
            return None
        given['layout'] = f'{nodes}x{kind}'
    elif (output.num_nodes or 2, output.num_tasks or 2) != (2, 2) or (
            # With fewer cores than threads the check uses fewer threads.
            int(about.get('receiver_threads', 1)) > cores):
        return None
    else:
        given['placement'] = 'inter_node'
    if row.group in ('pt2pt', 'threaded', 'collective'):
        given['buffers'] = 'host'
    if row.group.startswith('one_sided'):
        given |= {name: about[name] for name in ('synchronisation', 'window')}
    return CHECKS[row.group], ' '.join(map('='.join, sorted(given.items())))


def values_of(output: Output) -> Values:
    """The metrics of one repetition that are compared, and their means over sizes."""
    values: Values = {(one.metric, one.size): one.value for one in output.records
                      if one.size != 0 and one.metric in judged_metric_names('osu')}
    derived = compute_derived_metrics('osu', {
        metric_key(*key): value for key, value in values.items()})
    if all(size != 1 for _, size in values):
        # Newer versions begin at 1 B, so that their mean is another one.
        derived = {name: value for name, value in derived.items()
                   if name.endswith('_large')}
    return values | {(name, None): value for name, value in derived.items()}


def repetitions_of(source: Source, clone: Path) -> dict[TestCase, list[Values]]:
    """All repetitions of a source by test case.

    :raises ValueError: an output is damaged
    """
    result: dict[TestCase, list[Values]] = {}
    for match, text in matching_files(clone, source.paths):
        read = logs.parse_json_logs if match[0].endswith('.json') \
            else logs.parse_log
        # A log of several runs begins with the script that made it.
        pieces = re.findall(r'^FLUX-RUN START .*\n((?:.*\n)*?)FLUX-RUN END', text,
                            re.MULTILINE) or [text]
        try:
            outputs = [output for piece in pieces for output in read(piece)]
        except ParseError as err:
            raise ValueError(f'{source.repository}: {match[0]}: {err}') from None
        for output in outputs:
            case = test_case_of(output, int(match.groupdict().get('nodes') or 0),
                                source.cores)
            if case:
                result.setdefault(case, []).append(values_of(output))
    return result


def pooled_sessions(key: tuple[str, int | None], own: list[Values],
                    alike: list[list[Values]]) -> list[float]:
    """Values about the median of a test case, with the spread of several test cases.

    :param alike: repetitions of each test case, the own one included
    :returns: empty: too few repetitions
    """
    columns = [[values[key] for values in case if key in values] for case in alike]
    columns = [column for column in columns if column and statistics.median(column) > 0]
    number = sum(map(len, columns))
    free = number - len(columns)
    if free < FEWEST_RUNS - 1:
        return []
    centre = statistics.median(values[key] for values in own)
    widening = (
        math.sqrt((number - 1) / free)
        * spread.student_quantile(free, spread.Z)
        / spread.student_quantile(number - 1, spread.Z)
        * math.sqrt((2 + WITHIN_PART + 1 / len(own))
                    / (2 + WITHIN_PART + 1 / number)))
    return [centre * (1 + widening * (value / statistics.median(column) - 1))
            for column in columns for value in column]


def references_of(case: TestCase, repetitions: Mapping[TestCase, list[Values]]
                  ) -> CommentedMap:
    """metric -> [value, lower, upper, unit]; empty: no metric has a tolerance."""
    own = repetitions[case]
    program = re.sub(r'layout=\d+', '', case[1])
    alike = [values for (check, params), values in repetitions.items()
             if (check, re.sub(r'layout=\d+', '', params)) == (case[0], program)]
    metrics = {}
    for key in own[0]:
        numbers = [values[key] for values in own if key in values]
        if len(own) < FEWEST_RUNS:
            numbers = pooled_sessions(key, own, alike)
        if len(numbers) >= FEWEST_RUNS:
            metrics[key] = {str(number): value for number, value in enumerate(numbers)}
    values = writing.reference_values('osu', metrics)
    for metric, size in metrics:
        values[metric_key(metric, size)][0] = editing.round_to_six_digits(
            statistics.median(one[metric, size] for one in own
                              if (metric, size) in one))
    return values if any(map(has_tolerance, values.values())) else CommentedMap()


def source_text(source: Source, clone: Path, repetitions: int) -> str:
    """Where the values of an entry were published."""
    folder = re.match(r'[\w./-]*/', source.paths)
    return (f'github.com/{source.repository}, commit '
            f'{git(clone, "rev-parse", "--short=10", "HEAD").strip()}, '
            f'{folder[0] if folder else ""}: {repetitions} runs on {source.machine}'
            + '; spread of all node counts' * (repetitions < FEWEST_RUNS))


def put_entry(document: CommentedMap, place: str, case: TestCase, values: CommentedMap,
              source: dict[str, str]) -> None:
    """Add the references of a test case, and their source, to a file."""
    check, params = case
    keys = [place, '.*', '(?!embedded).*', params, '']
    level = document.setdefault(
        check, CommentedMap({'$index': editing.flow_style_list([*LEVELS])}))
    for key in map(editing.quote_yaml_string, keys[:-1]):
        level = level.setdefault(key, CommentedMap())
    level[editing.quote_yaml_string('')] = values
    document[FROM].setdefault(check, CommentedMap())[editing.quote_yaml_string(
        source_key(keys))] = editing.flow_style_mapping({
            name: editing.quote_yaml_string(text) for name, text in source.items()})


def main() -> bool:
    top = option_parser(__doc__)
    top.add_argument('folder', type=Path)
    args = top.parse_args()
    documents: dict[Path, CommentedMap] = {}
    print_table_head('partition', 'machine type', 'runs', 'test cases',
                     'with a tolerance', 'values')
    for source in SOURCES:
        site = source.place.partition(':')[0]
        document = documents.setdefault(
            ROOT / 'site-configs' / site / 'references/osu.yaml',
            CommentedMap({FROM: CommentedMap()}))
        clone = clone_of(source.repository, args.folder)
        repetitions = repetitions_of(source, clone)
        entries = {case: values for case in sorted(
                       repetitions, key=lambda case: natural_sort_key(' '.join(case)))
                   if (values := references_of(case, repetitions))}
        for case, values in entries.items():
            put_entry(document, source.place, case, values, {
                'source': source_text(source, clone, len(repetitions[case])),
                'date': source.date})
        print_table_row(source.place, source.machine,
                        sum(map(len, repetitions.values())), len(repetitions),
                        len(entries), sum(map(len, entries.values())))
    for path, document in documents.items():
        document.yaml_set_start_comment(
            'Published values, until `./plumb references calibrate` has measured '
            'this site.\nWritten by bench/published.py, which explains the tolerances.')
        path.parent.mkdir(exist_ok=True)
        write_files_atomically(path.parent, {path.name: editing.dump_yaml(document)})
    return True


if __name__ == '__main__':
    run_main_and_exit(main)
