"""Plot of the sweep: bandwidth over size, one curve per kind of all-reduce."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from config.records.units import size_text

from .timeline import save_figure

#: Size in B -> bandwidth in GB/s.
Curve = Mapping[int, float]


def draw(curves: Mapping[str, Curve], title: str, folder: Path, name: str,
         models: Mapping[str, Curve] = {}, metric: str = 'busbw') -> list[Path]:
    """Draw NAME.png and NAME.svg.

    :param metric: name of the bandwidth: busbw | algbw
    :param models: expected values of the curves of the same name, drawn dashed
    """
    # Imported only here: no check and no parser needs it.
    import matplotlib
    matplotlib.use('agg')
    from matplotlib import pyplot as plt

    unit = 'GB/s'
    if all(busbw < 1 for curve in curves.values()
           for busbw in curve.values()):
        unit = 'MB/s'
        curves, models = ({
            label: {size: 1000 * busbw for size, busbw in curve.items()}
            for label, curve in some.items()} for some in (curves, models))
    with plt.rc_context({'svg.hashsalt': 'plumbline', 'font.size': 9}):
        figure, axes = plt.subplots(figsize=(7, 4.5), layout='constrained')
        for label, curve in curves.items():
            sizes = sorted(curve)
            [line] = axes.plot(sizes, [curve[size] for size in sizes], 'o-',
                               label=label, markersize=5)
            for size in sizes:
                axes.annotate(f'{curve[size]:.4g}', (size, curve[size]),
                              xytext=(4, 4), textcoords='offset points',
                              fontsize=7, color=line.get_color())
            model = models.get(label, {})
            axes.plot(sorted(model), [model[size] for size in sorted(model)],
                      '--', color=line.get_color(), linewidth=1)
        if models:
            axes.plot([], [], '--', color='#777777', label='model')
        ticks = sorted({size for curve in curves.values() for size in curve})
        axes.set_xscale('log', base=2)
        axes.set_xticks(ticks, map(size_text, ticks))
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.margins(x=0.1)             # the last numbers stand beside
        axes.set_xlabel('size')
        axes.set_ylabel(f'{metric} ({unit})')
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(loc='upper left', bbox_to_anchor=(1, 1))
        return save_figure(figure, folder, name)
