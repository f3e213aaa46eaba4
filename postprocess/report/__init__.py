"""The page and its plots, in reading order:

build       ./plumb report
page        the content of the page; templates/ shows it
tidy        records prepared for plots and page
summary     quantiles of many repetitions
charts      colours, sizes, axes and legends; PNG and PDF
svg         plots as SVG, and as parts of the page
plots/    one module per kind of plot
plot        ./plumb plot
"""
