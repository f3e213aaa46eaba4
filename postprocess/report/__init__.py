"""The page and its plots, in reading order:

build       ./plumb report
page        the content of the page; templates/ shows it
cards       health, and what failed, regressed or changed
details     what the script of the page shows: test cases, all values
sections    families, with their plots
grid        test cases, and the grid of their results
curves      values over sessions
tidy        records prepared for plots and page, and their summaries
charts      colours, sizes, axes and legends
svg         plots as files, and as parts of the page
plots/      one module per kind of plot
plot        ./plumb plot
"""
