"""Tables as each version of nccl-tests and rccl-tests prints them.

Written from the print statements of the versions: for the parser's tests,
which have real output of 2.19 only.
"""
from __future__ import annotations

from checks.nccl.programs import PROGRAMS, TYPES

STYLES = ('2.0', '2.11', '2.13', '2.13.13', '2.16', '2.17', '2.17.5',
          '2.17.6', '2.19', 'rccl', 'rccl-O0', 'rccl-O1', 'rccl-M')


#: Programs with a root, and those that check no data in place.
ROOTED = {'broadcast_perf', 'reduce_perf', 'gather_perf', 'scatter_perf'}
UNCHECKED_IN_PLACE = {'alltoall_perf', 'alltoallv_perf', 'sendrecv_perf'}


def _time(value, style):
    if style in ('2.17.5', '2.17.6', '2.19'):
        return _fit(value, 7)
    return f'{value:.{0 if value >= 10000 else 1 if value >= 100 else 2}f}'


def _fit(value, width):
    return next(text for text in (f'{value:.{n}f}' for n in (2, 1, 0))
                if len(text) <= width or '.' not in text)


def _half(size, usec, ranks, program, style, checked=True):
    kind = PROGRAMS[program]
    algbw = size * kind.algbw_to_size_byte_ratio(ranks) / usec / 1e3
    busbw = algbw * kind.busbw_factor(ranks)
    if style == '2.0' and program in ('all_gather_perf',
                                      'reduce_scatter_perf'):
        algbw = busbw                   # as before June 2020
    wide = style in ('2.17.5', '2.17.6', '2.19')
    if wide:
        algbw_, busbw_ = _fit(algbw, 6), _fit(busbw, 6)
    else:
        algbw_, busbw_ = f'{algbw:.2f}', f'{busbw:.2f}'
    zero = '0e+00' if style in ('2.0', '2.11') else '0'
    wrong = (f'  {zero:>{6 if wide else 5}}' if checked else
             '    N/A' if wide else f'  {"N/A":>5}')
    return (f'  {_time(usec, style):>7}  {algbw_:>6}  {busbw_:>6}{wrong}',
            busbw)


def output(style='2.19', program='all_reduce_perf', ranks=4, minimum=1024,
           maximum=1 << 22, latency=12.3, rate=80.0, type_='float', hosts=1,
           warn=''):
    """A whole output; `rate` in GB/s, `latency` in us."""
    kind, width = PROGRAMS[program], TYPES[type_]
    old = style in ('2.0', '2.11')
    rccl = style.startswith('rccl')
    out = []
    if style in ('2.17.5', '2.17.6', '2.19'):
        out.append('# nccl-tests version 2.1x.y nccl-headers=22809 '
                   'nccl-library=22809'.replace('2.1x.y', style))
    if style.startswith(('2.17', '2.19')):
        out.append(f'# Collective test starting: {program}')
    out.append(
        f'# nThread 1 nGpus 1 minBytes {minimum} maxBytes {maximum} step: '
        '2(factor) warmup iters: 5 iters: 20 '
        + ('validation: 1 ' if old else 'agg iters: 1 validation: 1 graph: 0')
        + (' unalign: 0' if style == '2.19' else ''))
    out.append('#')
    if rccl:
        out.append('rccl-tests: Version develop:afd5ca1')
    out.append('# Using devices')
    for rank in range(ranks):
        host = f'node{rank * hosts // ranks + 1}'
        group = '' if old or style == '2.13' or rccl else f'Group {0:2d} '
        bus = ('[0x07]' if style in ('2.0', '2.11', '2.13', '2.13.13') else
               f'[0000:{7 + rank:02x}:00' + ('.0]' if rccl else ']'))
        lead = '#  ' if group else '#   '
        name = 'AMD Instinct MI300X' if rccl else 'NVIDIA H100 80GB HBM3'
        out.append(f'{lead}Rank {rank:2d} {group}Pid {4000 + rank:6d} on '
                   f'{host:>10} device {rank:2d} {bus} {name}')
    if warn:
        out.append(warn)
    out.append('#')
    redop = not old or kind.reduces
    root = not old or program in ROOTED
    w = 6 if style == '2.0' else 8
    names = [('size', 10), ('count', 12), ('type', w)]
    names += [('redop', 6)] * redop + [('root', 6)] * root
    lead = '# ' + '  '.join(f'{"":>{n}}' for _, n in names)
    halves = {'rccl-O0': (1,), 'rccl-O1': (0,)}.get(style, (0, 1))
    out.append(lead + {
        (1,): '           in-place          ',
        (0,): '           out-of-place         '}.get(
        halves, '           out-of-place                       in-place'
        '          '))
    wrong = 'error' if old else '#wrong'
    gap = '  ' if style in ('2.17.5', '2.17.6', '2.19') or old else ' '
    size = 6 if not old else 5
    each = (f'  {"time":>7}  {"algbw":>6}  {"busbw":>6}'
            f'{gap}{wrong:>{size}}')
    unit = (f'  {"(us)":>7}  {"(GB/s)":>6}  {"(GB/s)":>6}'
            f'  {"":>{5 if gap == " " or old else 6}}')
    chosen = f' {"algo":>8}  {"proto":>8}  {"nchannels":>10}' * (
        style == 'rccl-M')
    out.append('# ' + '  '.join(f'{t:>{n}}' for t, n in names)
               + each * len(halves) + chosen)
    out.append('# ' + '  '.join(
        f'{t:>{n}}' for t, (_, n) in zip(
            ['(B)', '(elements)', '', '', ''], names, strict=False))
        + unit * len(halves) + ' ' * 30 * rccl)
    total, number, nominal, rows = 0.0, 0, minimum, 0
    while nominal <= maximum:
        count = nominal // width
        if kind.split:
            count = count // ranks
            if style == '2.19':
                count &= ~(16 // width - 1)
        bytes_ = count * width * (ranks if kind.split else 1)
        line = f'{bytes_:>12}  {count:>12}  {type_:>{w}}'
        if redop:
            line += f'  {"sum" if kind.reduces else "none":>6}'
        if root:
            line += f'  {0 if program in ROOTED else -1:>6}'
        for half in halves:
            usec = latency + 0.37 * half + rows % 3 + bytes_ / rate / 1e3
            text, busbw = _half(bytes_, usec, ranks, program, style,
                                not half or program not in UNCHECKED_IN_PLACE)
            line, total, number = line + text, total + busbw, number + 1
        out.append(line + f'{"Ring":>8}  {"Simple":>8}  {64:>10}' * bool(
            chosen))
        rows, nominal = rows + 1, nominal * 2
    if rccl:
        out.append('# Errors with asterisks indicate errors that have '
                   'exceeded the maximum threshold.')
    out += ['# Out of bounds values : 0 OK',
            f'# Avg bus bandwidth    : {total / number:g} ', '#']
    if style.startswith(('2.17', '2.19')):
        out += [f'# Collective test concluded: {program}', '#']
    return '\n'.join([*out, '', ''])
