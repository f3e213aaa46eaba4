"""Values, sizes and units as people read them: on the terminal, the page and plots.

Records, JSON and CSV keep the units of the metrics.
"""
from __future__ import annotations

import re
from typing import NamedTuple

#: Unit of a metric -> its text for people. A dimensionless value has none.
_TEXTS = {'1': '', 'us': 'µs'}
#: Unit -> larger units, and how many of it they are, the largest first.
_LARGER: dict[str, list[tuple[str, float]]] = {
    '1/s': [('G/s', 1e9), ('M/s', 1e6), ('k/s', 1e3), ('/s', 1)],
    'us': [('s', 1e6), ('ms', 1e3)],
    'ms': [('s', 1e3)],
    'ns': [('ms', 1e6), ('µs', 1e3)],
    'MB/s': [('GB/s', 1e3)],
}
#: A larger unit is used from so many of it: 9999 µs, but 10 ms.
_MINIMUM = {'1/s': 1}
#: Narrow space between thousands.
SPACE = '\u202f'
#: Words of names of metrics that the titles of axes spell out.
_WORDS = {'cpu': 'CPU', 'qps': 'queries per second', 'busbw': 'bus bandwidth',
          'algbw': 'algorithm bandwidth', 'p50': '(median)', 'p90': '(90th percentile)',
          'p95': '(95th percentile)', 'p99': '(99th percentile)',
          'p999': '(99.9th percentile)', 'p9999': '(99.99th percentile)',
          'comm': 'communication', 'e2e': 'end to end', 'req': 'request',
          'avg': '(mean)', 'sd': '(standard deviation)', 'min': '(minimum)',
          'max': '(maximum)', 'median': '(median)', 'len': '(number of samples)'}


class Scale(NamedTuple):
    """The unit in which people read a value."""
    #: Text of the unit; '': dimensionless.
    unit: str
    #: Number of the metric's unit in one of this unit.
    factor: float

    def number(self, value: float) -> str:
        """A value of the metric, as a number of this unit."""
        return number_text(value / self.factor)


def unit_text(unit: str) -> str:
    """The text of a unit for people.

    >>> unit_text('us'), unit_text('MB/s'), unit_text('1')
    ('µs', 'MB/s', '')
    """
    return _TEXTS.get(unit, unit)


def readable_scale(unit: str, value: float) -> Scale:
    """The unit that people choose for values of this size.

    >>> readable_scale('MB/s', 24_100)
    Scale(unit='GB/s', factor=1000.0)
    """
    for larger, factor in _LARGER.get(unit, ()):
        if abs(value) >= factor * _MINIMUM.get(unit, 10) or factor == 1:
            return Scale(larger, factor)
    return Scale(unit_text(unit), 1)


def value_text(value: float, unit: str) -> str:
    """A value with its unit.

    >>> value_text(24_100, 'MB/s'), value_text(0.16, 'us'), value_text(183_456, '1/s')
    ('24.1 GB/s', '0.16 µs', '183.5 k/s')
    """
    scale = readable_scale(unit, value)
    return f'{scale.number(value)} {scale.unit}'.rstrip()


def number_text(value: float) -> str:
    """Four digits that count, never an exponent; all digits before the point.

    A smaller value than 1e-12 is what rounding left of 0.

    >>> number_text(0.123456), number_text(12070), number_text(1.5e-7)
    ('0.1235', '12\\u202f070', '0.00000015')
    >>> number_text(1.776e-15)
    '0'
    """
    if abs(value) < 1e-12:
        return '0'
    if abs(value) >= 9999.5 and abs(value) != float('inf'):
        return f'{value:,.0f}'.replace(',', SPACE)
    text = f'{value:.4g}'
    if 'e' in text:
        text = f'{value:.{3 - int(text.partition("e")[2])}f}'.rstrip('0')
    return text


def tick_text(value: float) -> str:
    """A number at an axis: 0.05, 20, 3k, 12M."""
    for limit, letter in ((1e9, 'G'), (1e6, 'M'), (1e4, 'k')):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return number_text(value)


def size_text(count: float) -> str:
    """A size in bytes, in the largest unit in which four digits are exact.

    >>> size_text(8), size_text(4_194_304), size_text(1536), size_text(1_000_000)
    ('8 B', '4 MiB', '1.5 KiB', '1000000 B')
    """
    for unit, factor in (('GiB', 1 << 30), ('MiB', 1 << 20), ('KiB', 1 << 10)):
        text = f'{count / factor:.4g}'
        if count >= factor and 'e' not in text and float(text) * factor == count:
            return f'{text} {unit}'
    return f'{count:.0f} B'


def point_text(point: str) -> str:
    """A point of a record for people.

    >>> point_text('4194304 B'), point_text('')
    ('4 MiB', '')
    """
    match = re.fullmatch(r'(\d+) B', point)
    return size_text(int(match[1])) if match else point


def change_text(ratio: float) -> str:
    """A ratio as a change: `+5.1 %`, or `3.2 x` if it is more than twice or less
    than half.

    >>> change_text(1.0514), change_text(0.78), change_text(3.2)
    ('+5.1 %', '-22 %', '3.2 x')
    """
    if not 0.5 <= ratio <= 2:
        return f'{ratio:.3g} x' if ratio < 1000 else f'{number_text(ratio)} x'
    percent = 100 * (ratio - 1)
    return f'{percent:+.{int(abs(percent) < 9.95)}f} %'


def quantity_text(metric: str, unit: str) -> str:
    """The quantity that a metric measures, as the title of an axis has it.

    >>> quantity_text('latency_p99', 'us'), quantity_text('operations', '1/s')
    ('Latency (99th percentile)', 'Operations per second')
    """
    words = [_WORDS.get(word, word) for word in metric.split('_')]
    text = ' '.join(words)
    if unit == '1/s' and text.endswith('s') and not text.endswith('second'):
        text += ' per second'
    return text[0].upper() + text[1:]


def axis_text(quantity: str, unit: str, log: bool = False) -> str:
    """The title of an axis: quantity, unit and scale.

    :param unit: its text for people; '': dimensionless, or part of the quantity

    >>> axis_text('Latency', 'µs', log=True), axis_text('Operations per second', '')
    ('Latency (µs, log)', 'Operations per second')
    """
    more = ', '.join(filter(None, [unit, 'log' if log else '']))
    return f'{quantity} ({more})' if more else quantity
